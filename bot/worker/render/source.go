package render

import (
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

// This file colours source by lexers that take linear time whatever a stranger has written; the lexers of most
// highlighters are backtracking regular expressions, and five megabytes of them.

// A class is what a piece of source is: the name of a CSS class, "" for nothing special.
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

// pieces returns source in pieces, which joined are the source.
func pieces(file, source string) []piece {
	var found []piece
	switch strings.ToLower(path.Ext(file)) {
	case ".js", ".mjs", ".cjs", ".ts", ".mts", ".cts", ".jsx", ".tsx", ".json", ".map":
		found = scriptPieces(source)
	case ".css", ".scss", ".less":
		found = stylePieces(source)
	default:
		return []piece{{source, ""}}
	}
	// What a lexer leaves out stays as it is.
	var b strings.Builder
	for _, p := range found {
		b.WriteString(p.text)
	}
	if rest, ok := strings.CutPrefix(source, b.String()); ok {
		return append(found, piece{rest, ""})
	}
	return []piece{{source, ""}}
}

// ScriptTokens returns the tokens of a script. Where a slash divides and where it begins a regular expression is a guess by the token before it. The
// tokens end early where the lexer finds an error.
func ScriptTokens(source []byte) iter.Seq2[js.TokenType, []byte] {
	return func(yield func(js.TokenType, []byte) bool) {
		l := js.NewLexer(parse.NewInputBytes(source[:len(source):len(source)]))
		value := false // whether a value ends here, after which a slash divides
		for {
			t, text := l.Next()
			if (t == js.DivToken || t == js.DivEqToken) && !value {
				// The lexer goes back behind the slash, and reads a regular expression if there is one.
				rt, rtext := l.RegExp()
				if rt != js.RegExpToken {
					yield(t, text)
					return
				}
				t, text = rt, rtext
			}
			if t == js.ErrorToken || !yield(t, text) {
				return
			}
			if !isSpace(t) {
				value = endsValue(t)
			}
		}
	}
}

// isSpace reports whether a token has no meaning.
func isSpace(t js.TokenType) bool {
	return t == js.WhitespaceToken || t == js.LineTerminatorToken || t == js.CommentToken || t == js.CommentLineTerminatorToken
}

// endsValue reports whether a slash after the token divides.
func endsValue(t js.TokenType) bool {
	switch t {
	case js.StringToken, js.TemplateToken, js.TemplateEndToken, js.RegExpToken, js.ThisToken, js.SuperToken, js.NullToken, js.TrueToken, js.FalseToken,
		js.CloseParenToken, js.CloseBracketToken, js.CloseBraceToken, js.IncrToken, js.DecrToken, js.PrivateIdentifierToken:
		return true
	}
	return js.IsNumeric(t) || js.IsIdentifier(t)
}

func scriptPieces(source string) []piece {
	var found []piece
	for t, text := range ScriptTokens([]byte(source)) {
		found = append(found, piece{string(text), scriptClass(t)})
	}
	return found
}

// scriptClass returns what a token of a script is shown as.
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

// source returns the markup of the lines that are wanted.
func source(r document.Request) (document.Result, error) {
	var lines []string
	long := slices.ContainsFunc(strings.Split(r.Text, "\n"), func(line string) bool { return len(line) > document.LongestLine })
	if long { // a program wrote it, so its lines are cut
		lines = strings.Split(strings.TrimSuffix(r.Text, "\n"), "\n")
		for i, line := range lines {
			lines[i] = html.EscapeString(text.Short(strings.TrimSuffix(line, "\r"), document.LongestLine))
		}
	} else {
		lines = markUp(pieces(r.Name, r.Text))
	}
	lines = lines[min(r.First, len(lines)):min(r.First+r.Lines, len(lines))]
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

// ellipsis stands for what is cut off.
const ellipsis = "…"

// markUp returns the lines of pieces as markup. No element goes from one line into the next.
func markUp(all []piece) []string {
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
