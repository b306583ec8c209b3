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

// A bracket is one that is open. isPseudo says that it has the arguments of a pseudo-class such as :not(, which are lists of selectors.
type bracket struct {
	closing  css.TokenType
	isPseudo bool
}

// A nesting counts the brackets that are open. Lists of selectors count as brackets, too.
type nesting struct{ blocks, brackets, selectors int }

// count adds by, 1 for a bracket that opens and -1 for one that closes, to the counts of b's kind.
func (n *nesting) count(b bracket, by int) {
	switch {
	case b.closing == css.RightBraceToken:
		n.blocks += by
	case b.isPseudo:
		n.selectors += by
		fallthrough
	default:
		n.brackets += by
	}
}

// check returns an error if too many brackets of a kind are open.
func (n *nesting) check() error {
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

// checkStyles returns an error if a style sheet has deeply nested brackets or a very long identifier. No tool or person writes
// such a style sheet, and the minifier's time for it grows with the square of their number. It is nil for other style sheets,
// also for invalid ones.
func checkStyles(data []byte) error {
	var stack []bracket
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
			b := bracket{closing, t == css.FunctionToken && before == css.ColonToken}
			stack = append(stack, b)
			open.count(b, 1)
			if err := open.check(); err != nil {
				return err
			}
		case len(stack) > 0 && stack[len(stack)-1].closing == t: // as in browsers, one of another kind closes nothing
			open.count(stack[len(stack)-1], -1)
			stack = stack[:len(stack)-1]
		}
		if t != css.CommentToken { // which the minifier skips, also between the colon and the name of a pseudo-class
			before = t
		}
	}
}
