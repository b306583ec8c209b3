package worker

import (
	"bytes"
	"errors"
	"fmt"

	"github.com/tdewolff/parse/v2/js"
)

// The limits of a script. The minifier's work on these grows with the square of their number.
const (
	maxScriptBlocks = 256 // nested: the minifier joins a block with the one around it, and copies its statements each time
	maxIfs          = 256 // each the statement of the one before: the minifier joins their conditions
	// maxJoining is the work of joining expressions and statements, for each byte of the script. A unit takes about 15 ns. The most expensive of
	// 16,786 published scripts (robust-predicates/umd/insphere.min.js) has 415.
	maxJoining = 1000
)

// checkScriptCost returns an error if esbuild would take long to parse or minify a script. No tool or person writes such a
// script. It estimates the cost from the tokens, and also refuses a script that it cannot split into tokens completely. It does
// not check that the script is valid.
func checkScriptCost(data []byte) error {
	s := scriptCost{open: []bracketCost{{}}}
	for t, text := range scriptTokens(data) {
		s.addToken(t, len(text))
		switch inner := s.open[len(s.open)-1]; {
		case s.blocks > maxScriptBlocks:
			return fmt.Errorf("over %d blocks in each other", maxScriptBlocks)
		case inner.ifs > maxIfs:
			return fmt.Errorf("over %d conditions in each other", maxIfs)
		case s.work > maxJoining*len(data):
			return errors.New("too many expressions or statements that the minifier would join")
		}
	}
	if s.read < len(data) {
		line := 1 + bytes.Count(data[:s.read], []byte("\n"))
		return fmt.Errorf("line %d: the time that the rest takes can't be estimated, because its tokens are unclear", line)
	}
	return nil
}

// A scriptCost estimates what a script costs the minifier while it reads the script's tokens. If it cannot know what a token
// means, it assumes the more expensive meaning.
type scriptCost struct {
	open   []bracketCost // the script itself and its open brackets
	blocks int           // open braces
	read   int           // bytes, with the current token
	work   int           // of joining; see maxJoining

	last           js.TokenType // the last token with a meaning; ErrorToken at the start
	newLine        bool         // since that
	ended          bool         // it ended a statement or a block
	afterCondition bool         // it ended the condition of a statement
	isLet          bool         // it is a "let" at the start of a statement
}

// A bracketCost has the counts for an open bracket, or for the script itself, from which the cost of minifying is estimated.
type bracketCost struct {
	isList      bool // commas separate items; elsewhere they join expressions, unless they separate declarations
	isCondition bool // of a statement
	isBare      bool // a block that does not belong to a statement
	declares    bool // in a statement that declares variables
	pending     int  // question marks whose colon did not come yet
	ifs         int  // each the statement of the one before
	// The minifier visits these again for each part that it joins: tokens of the expression, parts of the sequence of statements,
	// conditions among these, and question marks around.
	tokens, parts, conditions, questions int
	outerQuestions                       int
	operand                              int // where the current operand of a comma starts, in bytes from the start of the script
}

// The work of joining a part, for each token, condition or part that the minifier visits again. It copies tokens and conditions.
const (
	tokenWork     = 8
	conditionWork = 8
	partWork      = 2
	bytesAdded    = 4 // of an expression that a plus continues, for a unit: the minifier copies the text that it joined so far
)

// addToken updates the estimate of what the script costs the minifier for its next token, of type t and with size bytes. The
// caller passes all tokens in order, white space and comments, too, and compares the counts with the limits.
func (s *scriptCost) addToken(t js.TokenType, size int) {
	s.read += size
	switch t {
	case js.WhitespaceToken, js.CommentToken:
		return
	case js.LineTerminatorToken, js.CommentLineTerminatorToken:
		s.newLine = true
		return
	}
	inner := &s.open[len(s.open)-1]
	inner.tokens++
	joins, ends := s.newLineStarts(t)
	if joins {
		inner.joinPart(s)
	}
	if ends {
		inner.endStatement(s.read)
	}
	starts := ends || s.canStartStatement()
	if s.isLet && (js.IsIdentifierName(t) || t == js.OpenBraceToken || t == js.OpenBracketToken) {
		inner.startDeclaration(s.read)
	}
	s.isLet = starts && t == js.LetToken
	s.ended, s.afterCondition = t == js.SemicolonToken, false
	switch t {
	case js.OpenBraceToken, js.OpenParenToken, js.OpenBracketToken, js.TemplateStartToken:
		s.openBracket(t)
	case js.CloseBraceToken, js.CloseParenToken, js.CloseBracketToken, js.TemplateEndToken:
		s.closeBracket(t)
	case js.TemplateMiddleToken:
		s.closeBracket(t)
		s.openBracket(t)
	case js.VarToken, js.ConstToken:
		if starts {
			inner.startDeclaration(s.read)
		}
	case js.ForToken, js.WhileToken, js.DoToken, js.ClassToken, js.ExportToken:
		if starts {
			inner.startSequence(s.read)
		}
	default:
		inner.addToken(s, t)
	}
	s.last, s.newLine = t, false
}

// addToken updates the counts of an open bracket for a token directly in it that may separate what the minifier joins (a
// semicolon, comma, plus, question mark, colon or if), and adds the cost of joining to the script's total s.work. Other tokens
// change nothing.
func (o *bracketCost) addToken(s *scriptCost, t js.TokenType) {
	switch t {
	case js.SemicolonToken:
		o.joinPart(s)
		o.endStatement(s.read)
	case js.CommaToken:
		o.questions, o.operand = o.outerQuestions, s.read
		if o.isList || o.declares {
			o.parts = 0
			return
		}
		s.work += tokenWork * o.tokens
		o.joinPart(s)
	case js.AddToken:
		s.work += (s.read - o.operand) / bytesAdded
	case js.QuestionToken:
		o.pending++
		o.questions++
		s.work += conditionWork * o.questions
	case js.ColonToken:
		o.pending = max(0, o.pending-1)
	case js.IfToken:
		o.ifs++
		o.conditions++
		s.work += conditionWork * o.conditions
	}
}

// canStartStatement reports whether a statement may start after the last token that addToken got, if no new line follows it.
func (s *scriptCost) canStartStatement() bool {
	switch s.last {
	case js.ErrorToken, js.SemicolonToken, js.OpenBraceToken, js.CloseBraceToken, js.CloseParenToken, js.ElseToken:
		return true
	}
	return false
}

// newLineStarts says what a new line before the token t means; it changes nothing. joins is true if the statement before the new
// line may end there and the cost of joining it has not been counted yet; after a semicolon or a closed block it has. ends is
// true if a statement certainly starts at t. Either can be true without the other. Without a new line before t, both are false.
func (s *scriptCost) newLineStarts(t js.TokenType) (joins, ends bool) {
	switch {
	case !s.newLine || s.afterCondition || js.IsOperator(t) || js.IsPunctuator(t),
		t == js.InToken || t == js.InstanceofToken || t == js.TemplateToken || t == js.TemplateStartToken || t == js.TemplateMiddleToken || t == js.TemplateEndToken:
		return false, false
	case s.ended:
		return false, true
	}
	switch s.last {
	case js.YieldToken, js.AwaitToken, js.IncrToken, js.DecrToken:
		return true, false
	case js.CloseBraceToken, js.CloseParenToken, js.CloseBracketToken, js.StringToken, js.TemplateToken, js.TemplateEndToken, js.RegExpToken, js.PrivateIdentifierToken,
		js.ThisToken, js.SuperToken, js.NullToken, js.TrueToken, js.FalseToken, js.BreakToken, js.ContinueToken, js.DebuggerToken, js.ReturnToken:
		return true, true
	}
	isValue := js.IsIdentifier(s.last) || js.IsNumeric(s.last)
	return isValue, isValue
}

// openBracket starts the counts for the opening bracket t. A brace that could open either a block or an object counts as a block,
// whose commas join expressions.
func (s *scriptCost) openBracket(t js.TokenType) {
	outer := s.open[len(s.open)-1]
	inner := bracketCost{questions: outer.questions, outerQuestions: outer.questions, operand: s.read}
	isObject := startsObject(s.last, s.newLine)
	switch t {
	case js.OpenParenToken:
		switch s.last {
		case js.IfToken, js.WhileToken, js.ForToken, js.WithToken, js.AwaitToken:
			inner.isCondition = true
		case js.FunctionToken, js.SuperToken, js.ImportToken, js.CloseBracketToken: // of parameters, or of a call
			inner.isList = true
		default:
			inner.isList = js.IsIdentifier(s.last) && s.last != js.OfToken
		}
	case js.OpenBracketToken:
		inner.isList = isObject || s.last == js.ColonToken
	case js.OpenBraceToken:
		s.blocks++
		inner.isList = isObject || s.last == js.ColonToken && (outer.isList || outer.pending > 0)
		inner.isBare = s.last == js.ErrorToken || s.last == js.SemicolonToken || s.last == js.OpenBraceToken || s.last == js.CloseBraceToken
		inner.questions, inner.outerQuestions = 0, 0
	}
	s.open = append(s.open, inner)
}

// closeBracket ends the counts of the innermost bracket, which the token t closes, and adds them to those of the bracket around
// it. The content counts as part of the expression or the sequence of statements around it, unless it is the block of a
// statement. It does not check that both brackets are of one kind. If none is open, it changes at most the number of blocks.
func (s *scriptCost) closeBracket(t js.TokenType) {
	if t == js.CloseBraceToken {
		s.blocks = max(0, s.blocks-1)
	}
	last := len(s.open) - 1
	if last == 0 {
		return
	}
	inner := s.open[last]
	s.open = s.open[:last]
	outer := &s.open[last-1]
	if inner.isBare || t == js.CloseParenToken && !inner.isList {
		outer.parts += inner.parts
		s.work += partWork * inner.parts * outer.parts
	}
	if t != js.CloseBraceToken || inner.isList {
		outer.tokens += inner.tokens
		if t == js.CloseParenToken && !inner.isList {
			s.work += tokenWork * inner.tokens // of a&&(b&&c), the minifier makes a&&b&&c
		}
		s.afterCondition = inner.isCondition
		return
	}
	outer.joinPart(s)
	s.ended = true
	outer.ifs = 0 // it ends a statement, as a semicolon does
}

// joinPart counts one more part (a statement, or an operand of a comma) that the minifier joins with the parts before it, and
// adds the cost to the script's total s.work: the minifier visits each part before it again.
func (o *bracketCost) joinPart(s *scriptCost) {
	o.parts++
	s.work += partWork * o.parts
}

// endStatement resets the counts of the current statement. It keeps those of the sequence of statements that the minifier joins.
// start is the position in bytes behind the semicolon, or behind the first token of the next statement if a new line ends this
// one.
func (o *bracketCost) endStatement(start int) {
	o.tokens, o.ifs, o.pending, o.questions, o.declares, o.operand = 0, 0, 0, o.outerQuestions, false, start
}

// startSequence starts the counts of a sequence of statements anew (parts, conditions, tokens), for a statement that the minifier
// does not join with those before it. It keeps those of the statement, such as ifs and questions, which endStatement resets.
// start is the position in bytes behind the keyword that begins the statement; see startDeclaration for let.
func (o *bracketCost) startSequence(start int) {
	o.parts, o.conditions, o.tokens, o.operand = 0, 0, 0, start
}

// startDeclaration starts the counts of a sequence anew, as startSequence does, for a statement that declares variables. Commas
// in it separate declarations, until endStatement. start is the position in bytes behind var or const, or behind the token after
// let.
func (o *bracketCost) startDeclaration(start int) {
	o.startSequence(start)
	o.declares = true
}
