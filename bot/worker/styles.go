package worker

import (
	"fmt"

	"github.com/tdewolff/parse/v2"
	"github.com/tdewolff/parse/v2/css"
)

// What a style sheet may have for the minifier, whose work on these takes the square of their number or length.
const (
	maxBlocks    = 64   // in each other
	maxBrackets  = 16   // round and square ones in each other
	maxSelectors = 6    // in :is(), :not() and their like in each other: the minifier reads what is in brackets again for each
	maxName      = 1000 // bytes; the minifier looks for properties of similar names
)

// closings are the tokens that close others.
var closings = map[css.TokenType]css.TokenType{
	css.LeftBraceToken: css.RightBraceToken, css.LeftBracketToken: css.RightBracketToken,
	css.LeftParenthesisToken: css.RightParenthesisToken, css.FunctionToken: css.RightParenthesisToken,
}

// A nesting is what is open at a place of a style sheet.
type nesting struct {
	open                        []bracket
	blocks, brackets, selectors int // of open; selectors are brackets, too
}

// A bracket is an open one.
type bracket struct {
	closing css.TokenType
	count   []*int // fields of the nesting that count it
}

// add opens a bracket.
func (n *nesting) add(closing css.TokenType, pseudo bool) error {
	b := bracket{closing, []*int{&n.brackets}}
	switch {
	case closing == css.RightBraceToken:
		b.count = []*int{&n.blocks}
	case pseudo:
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

// close closes the innermost bracket if it is of that kind. As in browsers, a closing bracket of another kind closes nothing.
func (n *nesting) close(closing css.TokenType) {
	if last := len(n.open) - 1; last >= 0 && n.open[last].closing == closing {
		for _, count := range n.open[last].count {
			*count--
		}
		n.open = n.open[:last]
	}
}

// checkStyles refuses a style sheet that no tool or person writes and that would take the minifier long.
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
			if err := open.add(closing, t == css.FunctionToken && before == css.ColonToken); err != nil {
				return err
			}
		default:
			open.close(t)
		}
		if t != css.CommentToken { // which the minifier skips, also between the colon and the name of a pseudo-class
			before = t
		}
	}
}
