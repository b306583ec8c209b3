package worker

import (
	"bytes"
	"maps"
	"slices"
	"strings"

	"github.com/evanw/esbuild/pkg/api"
)

// maxExports bounds the names that are exported from one CommonJS module.
const maxExports = 5000

// fileExports is the exports that the text of a module names; no code runs. For a CommonJS module, the patterns are those of
// cjs-module-lexer (https://github.com/nodejs/cjs-module-lexer), by which Node.js finds them.
type fileExports struct {
	names      []string   // only of a CommonJS module
	hasDefault bool       // only of an ES module; also if it has tokens that the scanner cannot tell apart
	from       []string   // the specifiers of modules whose exports it exports, too
	others     []resolved // what these lead to, see loadExports
}

// readCommonJS returns the names that a CommonJS module exports, and the specifiers of the modules whose exports it re-exports.
// If the module chooses the latter by NODE_ENV, it returns those for production, or all of them if esbuild cannot parse the
// module.
func readCommonJS(source []byte) fileExports {
	found := scanCommonJS(source)
	if len(found.from) == 0 || !bytes.Contains(source, []byte("NODE_ENV")) {
		return found
	}
	// The module may export one of two others, for production or for development.
	out := api.Transform(string(source), api.TransformOptions{Define: defines, MinifySyntax: true, LogLevel: api.LogLevelSilent, LogOverride: silentWarnings})
	if len(out.Errors) == 0 {
		found.from = scanCommonJS(out.Code).from
	}
	return found
}

// scanCommonJS finds the exports and re-exports of a CommonJS module in its tokens; no code runs. If the module chooses among
// others by NODE_ENV, the result has all of these re-exports. It misses what follows where tokens become unclear.
func scanCommonJS(source []byte) fileExports {
	s, _ := newExportScanner(source)
	for at := range s.tokens {
		s.scanAt(at)
	}
	return s.found
}

// An exportScanner looks for exports in the tokens of a script.
type exportScanner struct {
	tokens    [][]byte
	closing   []int             // the token that closes each bracket, behind the end if none does
	required  map[string]string // the specifiers of modules by the variables that have them
	seen      map[string]bool   // names
	reexports map[string]bool
	found     fileExports
}

// newExportScanner splits a script into tokens, without comments and white space, and returns a scanner that has not scanned any.
// complete is false if the tokenizer stopped before the end of the script.
func newExportScanner(source []byte) (s *exportScanner, complete bool) {
	s = &exportScanner{required: map[string]string{}, seen: map[string]bool{}, reexports: map[string]bool{}}
	read := 0
	for t, text := range scriptTokens(source) {
		read += len(text)
		if !isSpace(t) {
			s.tokens = append(s.tokens, text)
		}
	}
	return s, read == len(source)
}

// matchBrackets fills s.closing: for the index of each token that opens a bracket, the index of the token that closes it, or the
// number of tokens if none does; 0 for other tokens. skipValue calls it at first use; s.closing is nil before. It does not check
// that both brackets are of one kind.
func (s *exportScanner) matchBrackets() {
	s.closing = make([]int, len(s.tokens))
	var open []int
	for at := range s.tokens {
		switch s.text(at) {
		case "(", "[", "{":
			s.closing[at] = len(s.tokens)
			open = append(open, at)
		case ")", "]", "}":
			if n := len(open); n > 0 {
				s.closing[open[n-1]] = at
				open = open[:n-1]
			}
		}
	}
}

// text returns the text of the token with the index at, "" if there is no such token.
func (s *exportScanner) text(at int) string {
	if at < 0 || at >= len(s.tokens) {
		return ""
	}
	return string(s.tokens[at])
}

// matches reports whether the texts of the tokens from the index at on are the expected ones.
func (s *exportScanner) matches(at int, expected ...string) bool {
	for i, e := range expected {
		if s.text(at+i) != e {
			return false
		}
	}
	return true
}

// scanAt records what starts at the token with the index at: an export, a re-export, or the assignment of a required module to a
// variable. It ignores anything else.
func (s *exportScanner) scanAt(at int) {
	switch s.text(at) {
	case "exports", "module":
		if after := s.skipExports(at); after > 0 && s.text(at-1) != "." {
			s.scanAssignment(after, s.text(at) == "module")
		}
	case "Object":
		if s.matches(at, "Object", ".", "defineProperty", "(") {
			s.scanDefinition(at + 4)
		} else if s.matches(at, "Object", ".", "keys", "(") && s.matches(at+5, ")", ".", "forEach", "(") && s.required[s.text(at+4)] != "" {
			s.addReexport(s.required[s.text(at+4)])
		}
	case "__export", "__exportStar":
		if specifier, _ := s.readRequire(at + 2); specifier != "" && s.text(at+1) == "(" {
			s.addReexport(specifier)
		}
	case "=":
		value := at + 1
		if strings.HasPrefix(s.text(value), "_interopRequireWildcard") && s.text(value+1) == "(" {
			value += 2
		}
		if specifier, _ := s.readRequire(value); specifier != "" {
			s.required[s.text(at-1)] = specifier
		}
	}
}

// skipExports returns the index of the token after "exports" or "module.exports" if one of these starts at the index at, else 0.
func (s *exportScanner) skipExports(at int) int {
	switch {
	case s.text(at) == "exports":
		return at + 1
	case s.matches(at, "module", ".", "exports"):
		return at + 3
	}
	return 0
}

// scanAssignment records the names that an assignment to exports, or to a member of it, exports. at is the index of the token
// after "exports". replaces says that the script wrote "module.exports". Only then an assignment without a member counts: it
// forgets earlier re-exports, and exports the members of an object literal or of a required module.
func (s *exportScanner) scanAssignment(at int, replaces bool) {
	switch s.text(at) {
	case ".":
		if s.text(at+2) == "=" {
			s.addName(s.text(at + 1))
		}
	case "[":
		if name, ok := unquote(s.text(at + 1)); ok && s.matches(at+2, "]", "=") {
			s.addName(name)
		}
	case "=":
		if !replaces {
			return
		}
		s.found.from = nil
		clear(s.reexports)
		if s.text(at+1) == "{" {
			s.scanObjectLiteral(at + 2)
		} else if specifier, _ := s.readRequire(at + 1); specifier != "" {
			s.addReexport(specifier)
		}
	}
}

// scanObjectLiteral records the members of an object literal that is assigned to module.exports, and the modules that it spreads
// into it with "...require(…)". at is the index of the token after the opening brace. Unlike cjs-module-lexer it continues after
// values that are no identifiers, because ES modules that were written for bundlers import these members, too. It stops at a
// member that it cannot read.
func (s *exportScanner) scanObjectLiteral(at int) {
	for {
		name, quoted := unquote(s.text(at))
		switch {
		case s.text(at) == "...":
			specifier, after := s.readRequire(at + 1)
			if specifier != "" {
				s.addReexport(specifier)
			} else if after = at + 2; !isIdentifier(s.text(at + 1)) {
				return
			}
			at = after
		case quoted || isIdentifier(s.text(at)):
			if !quoted {
				name = s.text(at)
			}
			at++
			if s.text(at) == ":" {
				s.addName(name)
				at = s.skipValue(at + 1)
			} else if !quoted && (s.text(at) == "," || s.text(at) == "}") {
				s.addName(name)
			}
		default:
			return
		}
		if s.text(at) != "," {
			return
		}
		at++
	}
}

// skipValue returns the index of the token after the value of an object literal's member: a comma or a closing bracket. at is the
// value's first token. If the tokens end before, it returns the number of tokens. The first call
// fills s.closing.
func (s *exportScanner) skipValue(at int) int {
	if s.closing == nil {
		s.matchBrackets()
	}
	for ; at < len(s.tokens); at++ {
		switch s.text(at) {
		case "(", "[", "{":
			at = s.closing[at]
		case ")", "]", "}", ",":
			return at
		}
	}
	return len(s.tokens)
}

// scanDefinition records the name in Object.defineProperty(exports, "name", {…}) if the object starts with a value, or with
// enumerable: true (or !0) and then a value or a getter. at is the index of the call's first argument.
func (s *exportScanner) scanDefinition(at int) {
	at = s.skipExports(at)
	if at == 0 || s.text(at) != "," {
		return
	}
	name, ok := unquote(s.text(at + 1))
	if !ok || !s.matches(at+2, ",", "{") {
		return
	}
	at += 4
	enumerable := s.text(at) == "enumerable" && s.text(at+1) == ":" && (s.text(at+2) == "true" || s.matches(at+2, "!", "0"))
	if enumerable {
		for s.text(at) != "," && at < len(s.tokens) {
			at++
		}
		at++
	}
	if s.matches(at, "value", ":") || enumerable && s.text(at) == "get" {
		s.addName(name)
	}
}

// readRequire returns the specifier of a call such as require("lodash") that starts at the index at, and the index of the token
// after the call. If no such call is there, it returns "" and at.
func (s *exportScanner) readRequire(at int) (specifier string, after int) {
	if name, ok := unquote(s.text(at + 2)); ok && s.matches(at, "require", "(") && s.text(at+3) == ")" {
		return name, at + 4
	}
	return "", at
}

// addName records a name that the scanned module exports, once. It ignores an empty name, and names over the limit of maxExports.
func (s *exportScanner) addName(name string) {
	if name != "" && !s.seen[name] && len(s.found.names) < maxExports {
		s.seen[name] = true
		s.found.names = append(s.found.names, name)
	}
}

// addReexport records once the specifier of a module whose exports the script re-exports. It ignores modules over the limit of
// maxExports.
func (s *exportScanner) addReexport(specifier string) {
	if !s.reexports[specifier] && len(s.found.from) < maxExports {
		s.reexports[specifier] = true
		s.found.from = append(s.found.from, specifier)
	}
}

// isIdentifier reports whether the first byte of a token is one with which the name of a variable or a member can start.
func isIdentifier(token string) bool {
	return token != "" && (token[0] == '_' || token[0] == '$' || token[0] >= 0x80 || 'a' <= token[0]|0x20 && token[0]|0x20 <= 'z')
}

// readESModule returns whether an ES module has a default export, and the specifiers, perhaps with repetitions, of the modules
// that it re-exports with `export *`, but not with `export * as`. esbuild does not report these. If the script cannot be split
// into tokens completely, it counts as having a default export.
func readESModule(source []byte) fileExports {
	s, complete := newExportScanner(source)
	m := fileExports{hasDefault: !complete}
	for at := 0; at < len(s.tokens); at++ {
		if s.text(at) != "export" || s.text(at-1) == "." {
			continue
		}
		switch s.text(at + 1) {
		case "*":
			if specifier, ok := unquote(s.text(at + 3)); ok && s.text(at+2) == "from" {
				m.from = append(m.from, specifier)
			}
		case "default":
			m.hasDefault = true
		case "{":
			for at += 2; at < len(s.tokens) && s.text(at) != "}"; at++ {
				next := s.text(at + 1)
				m.hasDefault = m.hasDefault || s.text(at) == "default" && (next == "," || next == "}")
			}
		}
	}
	return m
}

// nodeGlobals are the globals of Node.js that browsers lack and that defines does not replace.
var nodeGlobals = []string{"Buffer", "__dirname", "__filename", "clearImmediate", "process", "setImmediate"}

// findNodeGlobals returns the names of nodeGlobals that a script uses as globals, sorted. It leaves out those that the script
// tests with typeof anywhere, and those that it uses only in code that does not run in production. It returns none for a script
// that esbuild cannot parse.
func findNodeGlobals(source []byte) (found []string) {
	const mark = "__global_of_node_"
	marked := maps.Clone(defines)
	for _, name := range nodeGlobals {
		if bytes.Contains(source, []byte(name)) {
			marked[name] = mark + name
		}
	}
	if len(marked) == len(defines) {
		return nil
	}
	// esbuild knows which of the names are variables of the script, and drops what runs only for development.
	out := api.Transform(string(source), api.TransformOptions{Define: marked, MinifySyntax: true, LogLevel: api.LogLevelSilent, LogOverride: silentWarnings})
	s, _ := newExportScanner(out.Code)
	tested := map[string]bool{}
	for at := range s.tokens {
		if name, ok := strings.CutPrefix(s.text(at), mark); ok {
			found = append(found, name)
			tested[name] = tested[name] || s.text(at-1) == "typeof"
		}
	}
	return slices.DeleteFunc(sortUnique(found), func(name string) bool { return tested[name] })
}

// unquote returns the value of a token that is a string literal in single or double quotes without escapes. ok is false for any
// other token.
func unquote(token string) (value string, ok bool) {
	n := len(token)
	if n < 2 || token[0] != '"' && token[0] != '\'' || token[n-1] != token[0] || strings.ContainsAny(token[1:n-1], "\\\n") {
		return "", false
	}
	return token[1 : n-1], true
}
