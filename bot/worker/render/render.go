// Package render turns documents that strangers wrote into what pages display: READMEs, source, comparisons, the imports of
// modules, and ranges of versions.
//
// Hostile documents can make its parsers take much more time and memory than their size suggests, so only worker processes
// run it, within the limits of package worker. It guarantees nothing about its output that package document does not check
// again.
//
// Only package worker may import it. It must not know stores, releases or HTTP.
package render

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"github.com/larder-cdn/larder/internal/document"
)

// renderers are the functions for each kind of document.
var renderers = map[document.Kind]func(document.Request) (document.Result, error){
	document.Readme:     renderReadme,
	document.Source:     renderSource,
	document.Comparison: renderComparison,
	document.Imports:    renderImports,
	document.Ranges:     renderVersionRanges,
}

// Kinds returns the kinds of documents that can be rendered, sorted.
func Kinds() []document.Kind { return slices.Sorted(maps.Keys(renderers)) }

// Run decodes data, a [document.Request] in JSON, renders its document, and returns the encoded [document.Result]. Child
// processes of package worker call it for their task to render. It returns an error if data is malformed, or if [Render] or
// encoding the result fails.
func Run(data []byte) ([]byte, error) {
	var r document.Request
	if err := json.Unmarshal(data, &r); err != nil {
		return nil, fmt.Errorf("malformed request: %w", err)
	}
	result, err := Render(r)
	if err != nil {
		return nil, err
	}
	return result.Encode()
}

// Render renders the document of one request with the function for its kind. It returns an error if the request exceeds a limit,
// its kind is unknown, or that function fails; then the result has no meaning. It does not recover from a panic of a parser, so
// only a child process and tests call it.
func Render(r document.Request) (result document.Result, err error) {
	if n := max(len(r.Text), len(r.After)); int64(n) > r.Kind.MaxInput() {
		return result, fmt.Errorf("%d bytes, over the limit of %d", n, r.Kind.MaxInput())
	}
	render, ok := renderers[r.Kind]
	if !ok {
		return result, fmt.Errorf("unknown kind of document %q", r.Kind)
	}
	result, err = render(r)
	result.Kind = r.Kind
	return result, err
}
