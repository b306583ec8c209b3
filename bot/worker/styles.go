package worker

import (
	"fmt"

	"github.com/tdewolff/parse/v2"
	"github.com/tdewolff/parse/v2/css"
)

// The limits of a style sheet. The minifier's work on these grows with the square of their number or length.
const (
	maxBlocks    = 64   // nested
	maxBrackets  = 16   // nested, round and square
	maxSelectors = 6    // nested, in :is(), :not() and so on: the minifier reads the content of the brackets again for each
	maxName      = 1000 // bytes; the minifier looks for properties of similar names
)

// closings has the closing token of each opening one.
var closings = map[css.TokenType]css.TokenType{
	css.LeftBraceToken: css.RightBraceToken, css.LeftBracketToken: css.RightBracketToken,
	css.LeftParenthesisToken: css.RightParenthesisToken, css.FunctionToken: css.RightParenthesisToken,
}

// A nesting is the brackets that are open at some place of a style sheet.
type nesting struct {
	open                        []bracket
	blocks, brackets, selectors int // of open; selectors are brackets, too
}

// A bracket is one that is open.
type bracket struct {
	closing css.TokenType
	count   []*int // fields of the nesting that count it
}

// openBracket records an opening bracket of a style sheet, and returns an error if too many of its kind are nested then. closing
// is the token that will close it. isPseudo says that it opens the arguments of a pseudo-class such as :not(, which count as a
// bracket and as a list of selectors.
func (n *nesting) openBracket(closing css.TokenType, isPseudo bool) error {
	b := bracket{closing, []*int{&n.brackets}}
	switch {
	case closing == css.RightBraceToken:
		b.count = []*int{&n.blocks}
	case isPseudo:
		b.count = append(b.count, &n.selectors)
	}
	for _, count := range b.count {
		*count++
	}
	n.open = append(n.open, b)
	switch {
	case n.blocks > maxBlocks:
		return fmt.Errorf("over %d blocks in each other", maxBlocks)
	case n.brackets > maxBrackets:
		return fmt.Errorf("over %d brackets in each other", maxBrackets)
	case n.selectors > maxSelectors:
		return fmt.Errorf("over %d lists of selectors in each other", maxSelectors)
	}
	return nil
}

// closeBracket removes the innermost open bracket if the token closing closes it. As in browsers, a closing bracket of another
// kind closes nothing.
func (n *nesting) closeBracket(closing css.TokenType) {
	if last := len(n.open) - 1; last >= 0 && n.open[last].closing == closing {
		for _, count := range n.open[last].count {
			*count--
		}
		n.open = n.open[:last]
	}
}

// checkStyles returns an error if a style sheet has deeply nested brackets or a very long identifier. No tool or person writes
// such a style sheet, and the minifier's time for it grows with the square of their number. It is nil for other style sheets,
// also for invalid ones.
func checkStyles(data []byte) error {
	var open nesting
	l := css.NewLexer(parse.NewInputBytes(data[:len(data):len(data)]))
	for before := css.TokenType(0); ; {
		t, text := l.Next()
		closing, opens := closings[t]
		switch {
		case t == css.ErrorToken:
			return nil
		case t == css.IdentToken && len(text) > maxName:
			return fmt.Errorf("a name of %d bytes, over the limit of %d", len(text), maxName)
		case opens:
			if err := open.openBracket(closing, t == css.FunctionToken && before == css.ColonToken); err != nil {
				return err
			}
		default:
			open.closeBracket(t)
		}
		if t != css.CommentToken { // which the minifier skips, also between the colon and the name of a pseudo-class
			before = t
		}
	}
}
