package worker

import (
	"fmt"

	"github.com/tdewolff/parse/v2/js"

	"github.com/larder-cdn/larder/bot/worker/render"
)

// What a script may have for the minifier, whose work on these takes the square of their number.
const (
	maxScriptBlocks = 256 // in each other: the minifier joins a block with the one around it, and copies its statements each time
	maxIfs          = 256 // of which each is the statement of the one before: the minifier joins their conditions
)

// checkScript refuses a script that no tool or person writes and that would take the minifier long. It finds what its lexer can tell; the limits of the
// process bound the rest.
func checkScript(data []byte) error {
	blocks, ifs := 0, 0
	var outside []int // ifs before each open bracket
	for t := range render.ScriptTokens(data) {
		switch t {
		case js.OpenBraceToken, js.OpenParenToken, js.OpenBracketToken:
			outside = append(outside, ifs)
			ifs = 0
			if t == js.OpenBraceToken {
				blocks++
			}
		case js.CloseBraceToken, js.CloseParenToken, js.CloseBracketToken:
			ifs = 0
			if last := len(outside) - 1; last >= 0 {
				ifs, outside = outside[last], outside[:last]
			}
			if t == js.CloseBraceToken { // it ends a statement, as a semicolon does
				blocks, ifs = max(0, blocks-1), 0
			}
		case js.SemicolonToken:
			ifs = 0
		case js.IfToken:
			ifs++
		}
		if blocks > maxScriptBlocks {
			return fmt.Errorf("over %d blocks in each other", maxScriptBlocks)
		}
		if ifs > maxIfs {
			return fmt.Errorf("over %d conditions in each other", maxIfs)
		}
	}
	return nil
}
