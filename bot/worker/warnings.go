package worker

import (
	"strings"

	"github.com/evanw/esbuild/pkg/api"
)

// silentWarnings disables all of esbuild's warnings, which Larder does not use. For each of them, esbuild looks for the end of its line,
// so that the time for a script in one line grows with the square of their number.
var silentWarnings = func() map[string]api.LogLevel {
	levels := map[string]api.LogLevel{}
	for _, id := range strings.Fields(`
		assert-to-with assert-type-json assign-to-constant assign-to-define assign-to-import bigint call-import-namespace class-name-will-throw
		commonjs-variable-in-esm confusing-typescript-cast delete-super-property direct-eval duplicate-case duplicate-class-member
		duplicate-object-key empty-import-meta equals-nan equals-negative-zero equals-new-object html-comment-in-js impossible-typeof
		indirect-require private-name-will-throw semicolon-after-return suspicious-boolean-not suspicious-define suspicious-logical-operator
		suspicious-nullish-coalescing this-is-undefined-in-esm unsupported-dynamic-import unsupported-jsx-comment unsupported-regexp
		unsupported-require-call css-syntax-error invalid-@charset invalid-@import invalid-@layer invalid-calc js-comment-in-css
		undefined-composes-from unsupported-@charset unsupported-@namespace unsupported-css-property unsupported-css-nesting ambiguous-reexport
		different-path-case empty-glob ignored-bare-import ignored-dynamic-import import-is-undefined require-resolve-not-external
		invalid-source-mappings missing-source-map unsupported-source-map-comment`) {
		levels[id] = api.LogLevelSilent
	}
	return levels
}()
