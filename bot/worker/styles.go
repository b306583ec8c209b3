package worker

import (
	"fmt"

	"github.com/tdewolff/parse/v2"
	"github.com/tdewolff/parse/v2/css"
)

// What a style sheet may have for the minifier, whose work on these takes the square of their number or length.
const (
	maxBrackets = 64   // in each other
	maxName     = 1000 // bytes; the minifier looks for properties of similar names
)

// closings are the tokens that close others.
var closings = map[css.TokenType]css.TokenType{
	css.LeftBraceToken: css.RightBraceToken, css.LeftBracketToken: css.RightBracketToken,
	css.LeftParenthesisToken: css.RightParenthesisToken, css.FunctionToken: css.RightParenthesisToken,
}

// checkStyles refuses a style sheet that no tool or person writes and that would take the minifier long. As in browsers, a closing bracket of another kind
// closes nothing.
func checkStyles(data []byte) error {
	var open []css.TokenType // what closes the brackets that are open
	l := css.NewLexer(parse.NewInputBytes(data[:len(data):len(data)]))
	for {
		t, text := l.Next()
		closing, opens := closings[t]
		switch {
		case t == css.ErrorToken:
			return nil
		case t == css.IdentToken && len(text) > maxName:
			return fmt.Errorf("a name of %d bytes, over the limit of %d", len(text), maxName)
		case len(open) > 0 && t == open[len(open)-1]:
			open = open[:len(open)-1]
		case opens:
			if open = append(open, closing); len(open) > maxBrackets {
				return fmt.Errorf("over %d brackets in each other", maxBrackets)
			}
		}
	}
}
