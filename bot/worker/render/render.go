// Package render turns what strangers wrote into what pages show: READMEs, source, comparisons, what modules import, and ranges of versions.
//
// Its parsers can be made to take much more time and memory than their input suggests, so only worker processes run it: package worker bounds
// those. It guarantees nothing about its output that package document does not check again.
//
// Only package worker may import it. It must not know stores, releases or HTTP.
package render

import (
	"encoding/json"
	"fmt"

	"github.com/larder-cdn/larder/internal/document"
)

// Run renders a request in JSON and returns the encoded result.
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

// Render renders one document.
func Render(r document.Request) (result document.Result, err error) {
	if n := max(len(r.Text), len(r.After)); int64(n) > r.Kind.MaxInput() {
		return result, fmt.Errorf("%d bytes, over the limit of %d", n, r.Kind.MaxInput())
	}
	switch r.Kind {
	case document.Readme:
		result, err = readme(r)
	case document.Source:
		result, err = source(r)
	case document.Comparison:
		result, err = compare(r)
	case document.Imports:
		result, err = imports(r)
	case document.Ranges:
		result, err = ranges(r)
	default:
		return result, fmt.Errorf("unknown kind of document %q", r.Kind)
	}
	result.Kind = r.Kind
	return result, err
}
