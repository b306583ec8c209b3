package worker

import (
	"bytes"
	"html"
	"iter"
	"path"
	"slices"
	"strings"

	"github.com/tdewolff/parse/v2"
	"github.com/tdewolff/parse/v2/css"
	"github.com/tdewolff/parse/v2/js"

	"github.com/larder-cdn/larder/internal/document"
	"github.com/larder-cdn/larder/internal/text"
)

// This file colors source with lexers that take linear time for any input. The lexers of most highlighters are backtracking
// regular expressions, and five megabytes of them.

// A class is the CSS class in which a piece of source is displayed, "" for none.
type class string

const (
	isKeyword class = "k"
	isString  class = "s"
	isComment class = "c"
	isNumber  class = "n"
	isName    class = "p" // of a property, a custom one or an at-rule
)

// A piece is a run of source of one class.
type piece struct {
	text  string
	class class
}

// splitSource splits source into pieces of one CSS class each, by which a page colors it. The pieces joined together are the
// source. file is the file's name, whose extension says the language. Source in an unknown language is one piece without a class.
// So is the rest of a source after an error of the lexer or, in a script, after a slash that may divide or start a regular
// expression.
func splitSource(file, source string) []piece {
	var found []piece
	switch strings.ToLower(path.Ext(file)) {
	case ".js", ".mjs", ".cjs", ".ts", ".mts", ".cts", ".jsx", ".tsx", ".json", ".map":
		found = scriptPieces(source)
	case ".css", ".scss", ".less":
		found = stylePieces(source)
	default:
		return []piece{{source, ""}}
	}
	// Source that the lexer left out is not colored.
	var b strings.Builder
	for _, p := range found {
		b.WriteString(p.text)
	}
	if rest, ok := strings.CutPrefix(source, b.String()); ok {
		return append(found, piece{rest, ""})
	}
	return []piece{{source, ""}}
}

// scriptTokens returns an iterator over the types and texts of a script's tokens, white space and comments included; the texts
// joined together are the script or its start. It ends early, without a sign of that, where the lexer finds an error, and where
// only a complete parser could say whether a slash divides or starts a regular expression: a lexer that guesses wrong would take
// code for a text.
func scriptTokens(source []byte) iter.Seq2[js.TokenType, []byte] {
	return func(yield func(js.TokenType, []byte) bool) {
		if bytes.HasPrefix(source, []byte("#!")) {
			end := bytes.IndexAny(source, "\r\n")
			if end < 0 {
				end = len(source)
			}
			if !yield(js.CommentToken, source[:end]) {
				return
			}
			source = source[end:]
		}
		l := js.NewLexer(parse.NewInputBytes(source[:len(source):len(source)]))
		var slashes slashReader
		for {
			t, text := l.Next()
			if t == js.DivToken || t == js.DivEqToken {
				switch slashes.meaning {
				case unclear:
					return
				case startsRegExp:
					if t, text = l.RegExp(); t != js.RegExpToken {
						return
					}
				}
			}
			if t == js.ErrorToken || !yield(t, text) {
				return
			}
			slashes.addToken(t)
		}
	}
}

// isSpace reports whether a token of a script is white space, a new line or a comment.
func isSpace(t js.TokenType) bool {
	return t == js.WhitespaceToken || t == js.LineTerminatorToken || t == js.CommentToken || t == js.CommentLineTerminatorToken
}

// A slashMeaning says whether a slash in a script divides, or starts a regular expression.
type slashMeaning int

const (
	startsRegExp slashMeaning = iota
	divides
	unclear
)

// A slashReader finds out from the tokens before a slash what it does.
type slashReader struct {
	meaning slashMeaning   // of a slash that comes next
	last    js.TokenType   // the last token with a meaning; ErrorToken at the start
	newLine bool           // since that
	open    []slashMeaning // of a slash after the closing of each open bracket
}

// addToken updates r.meaning, which says whether a slash that comes next in the script divides or starts a regular
// expression. The caller passes every token of the script in order.
func (r *slashReader) addToken(t js.TokenType) {
	switch {
	case t == js.LineTerminatorToken || t == js.CommentLineTerminatorToken:
		r.newLine = true
		return
	case isSpace(t) || t == js.AwaitToken && r.last == js.ForToken:
		return
	}
	afterDot := r.last == js.DotToken || r.last == js.OptChainToken
	switch {
	case afterDot && js.IsIdentifierName(t):
		r.meaning = divides
		t = js.IdentifierToken
	case t == js.OpenBraceToken || t == js.OpenParenToken || t == js.OpenBracketToken:
		r.open = append(r.open, r.meaningAfter(t))
		r.meaning = startsRegExp
	case t == js.CloseBraceToken || t == js.CloseParenToken || t == js.CloseBracketToken:
		r.meaning = unclear
		if last := len(r.open) - 1; last >= 0 {
			r.meaning, r.open = r.open[last], r.open[:last]
		}
	case t == js.YieldToken || t == js.AwaitToken || t == js.OfToken: // names in some places, operators in others
		r.meaning = unclear
	case endsValue(t):
		r.meaning = divides
	default:
		r.meaning = startsRegExp
	}
	r.last, r.newLine = t, false
}

// meaningAfter returns what a slash right after a closing bracket will mean, if opening is the token that opens the bracket.
// It is unclear after the body of a function or class. r has read the tokens before opening, and meaningAfter does not
// change it.
func (r *slashReader) meaningAfter(opening js.TokenType) slashMeaning {
	switch opening {
	case js.OpenBracketToken:
		return divides
	case js.OpenParenToken:
		switch r.last {
		case js.IfToken, js.WhileToken, js.ForToken, js.WithToken, js.SwitchToken, js.CatchToken:
			return startsRegExp
		}
		return divides
	}
	switch {
	case startsObject(r.last, r.newLine):
		return divides
	case r.last == js.CloseParenToken && r.meaning == startsRegExp: // of a condition
		return startsRegExp
	}
	switch r.last {
	case js.ErrorToken, js.SemicolonToken, js.OpenBraceToken, js.CloseBraceToken, js.ArrowToken, js.ElseToken, js.DoToken, js.TryToken, js.FinallyToken:
		return startsRegExp // after a block
	}
	return unclear // after a function or a class, which may be a value
}

// startsObject reports whether an opening brace in a script certainly starts an object or a list of names, not a block. If it is
// false, the brace may start either. last is the token before the brace, and newLine says that a new line is between them.
func startsObject(last js.TokenType, newLine bool) bool {
	switch last {
	case js.OpenParenToken, js.OpenBracketToken, js.CommaToken, js.QuestionToken, js.EllipsisToken:
		return true
	case js.ReturnToken, js.ExportToken, js.ImportToken, js.DefaultToken:
		return !newLine
	}
	return js.IsOperator(last) && last != js.IncrToken && last != js.DecrToken && last != js.ArrowToken
}

// endsValue reports whether a token of a script that is not a bracket ends a value, so that a slash after it divides.
func endsValue(t js.TokenType) bool {
	switch t {
	case js.StringToken, js.TemplateToken, js.TemplateEndToken, js.RegExpToken, js.ThisToken, js.SuperToken, js.NullToken, js.TrueToken, js.FalseToken,
		js.IncrToken, js.DecrToken, js.PrivateIdentifierToken:
		return true
	}
	return js.IsNumeric(t) || js.IsIdentifier(t)
}

// scriptPieces splits a script into pieces with the CSS classes of their colors, one for each token. It ends where
// scriptTokens does, which may be before the end of the script.
func scriptPieces(source string) []piece {
	var found []piece
	for t, text := range scriptTokens([]byte(source)) {
		found = append(found, piece{string(text), scriptClass(t)})
	}
	return found
}

// scriptClass returns the CSS class by which a page colors a token of a script, "" for no color.
func scriptClass(t js.TokenType) class {
	switch t {
	case js.CommentToken, js.CommentLineTerminatorToken:
		return isComment
	case js.StringToken, js.TemplateToken, js.TemplateStartToken, js.TemplateMiddleToken, js.TemplateEndToken, js.RegExpToken:
		return isString
	case js.LetToken, js.AsyncToken, js.FromToken, js.OfToken, js.StaticToken:
		return isKeyword
	}
	switch {
	case js.IsNumeric(t):
		return isNumber
	case js.IsReservedWord(t):
		return isKeyword
	}
	return ""
}

// stylePieces splits a style sheet into pieces with the CSS classes of their colors, one for each token, up to its end or an
// error of the lexer.
func stylePieces(source string) []piece {
	l := css.NewLexer(parse.NewInputString(source))
	var found []piece
	for {
		t, text := l.Next()
		p := piece{text: string(text)}
		switch t {
		case css.ErrorToken:
			return found
		case css.CommentToken:
			p.class = isComment
		case css.StringToken, css.URLToken, css.BadStringToken, css.BadURLToken:
			p.class = isString
		case css.NumberToken, css.PercentageToken, css.DimensionToken, css.HashToken:
			p.class = isNumber
		case css.AtKeywordToken:
			p.class = isKeyword
		case css.CustomPropertyNameToken:
			p.class = isName
		}
		found = append(found, p)
	}
}

// renderSource returns as HTML the lines of the source r.Text after the first r.First lines, up to r.Lines and document.MaxLines.
// It colors the source, whose language the extension of r.Name says; if any line has over document.LongestLine bytes, it colors
// nothing and shortens such lines. Cut is true in the result if a line ends with an ellipsis, which stands for what was cut off
// and for lines that the HTML has no space for. It never returns an error.
func renderSource(r document.Request) (document.Result, error) {
	var lines []string
	long := slices.ContainsFunc(strings.Split(r.Text, "\n"), func(line string) bool { return len(line) > document.LongestLine })
	if long { // a program wrote it, so its lines are cut
		lines = strings.Split(strings.TrimSuffix(r.Text, "\n"), "\n")
		for i, line := range lines {
			lines[i] = html.EscapeString(text.Short(strings.TrimSuffix(line, "\r"), document.LongestLine))
		}
	} else {
		lines = markUpLines(splitSource(r.Name, r.Text))
	}
	lines = lines[min(r.First, len(lines)):min(r.First+min(r.Lines, document.MaxLines), len(lines))]
	var b strings.Builder
	result := document.Result{}
	for _, line := range lines {
		if b.Len()+len(line)+len(ellipsis)+1 > document.MaxMarkup-len(lines)*(len(ellipsis)+1) {
			line, result.Cut = ellipsis, true
		}
		result.Cut = result.Cut || strings.HasSuffix(line, ellipsis)
		b.WriteString(line + "\n")
	}
	result.Markup = b.String()
	return result, nil
}

// ellipsis replaces what is cut off.
const ellipsis = "…"

// markUpLines returns the lines of the source that the pieces are together, as HTML without line ends. No element continues
// in the next line.
func markUpLines(all []piece) []string {
	var lines []string
	var line strings.Builder
	for _, p := range all {
		for i, text := range strings.Split(p.text, "\n") {
			if i > 0 {
				lines = append(lines, line.String())
				line.Reset()
			}
			text = strings.TrimSuffix(text, "\r")
			switch {
			case text == "":
			case p.class == "":
				line.WriteString(html.EscapeString(text))
			default:
				line.WriteString(`<span class="` + string(p.class) + `">` + html.EscapeString(text) + "</span>")
			}
		}
	}
	if line.Len() > 0 {
		lines = append(lines, line.String())
	}
	return lines
}
