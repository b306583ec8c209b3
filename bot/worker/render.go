package worker

import (
	"encoding/json"
	"fmt"

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

// runRender is the function of the task [Render]. It decodes data, a [document.Request] in JSON, renders its document, and
// returns the encoded [document.Result]. It returns an error if data is malformed, or if [RenderDocument] or encoding the result
// fails.
func runRender(data []byte) ([]byte, error) {
	var r document.Request
	if err := json.Unmarshal(data, &r); err != nil {
		return nil, fmt.Errorf("malformed request: %w", err)
	}
	result, err := RenderDocument(r)
	if err != nil {
		return nil, err
	}
	return result.Encode()
}

// RenderDocument renders the document of one request with the function for its kind. It returns an error if the request exceeds a limit,
// its kind is unknown, or that function fails; then the result has no meaning. It does not recover from a panic of a parser, so
// only a child process and tests call it.
func RenderDocument(r document.Request) (result document.Result, err error) {
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
