package text

import (
	"encoding/json"
	"io"
)

// WriteJSON writes a value as indented JSON and a line break, without escapes for HTML.
func WriteJSON(w io.Writer, value any) error {
	encoder := json.NewEncoder(w)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	return encoder.Encode(value)
}
