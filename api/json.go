package api

import (
	"bytes"
	"encoding/json"
	"fmt"
)

// A jsonWriter writes JSON whose objects have their fields in the order of the calls, and in which "<" and "&" are what
// they are: the answers are data, not part of a page. The zero value is ready.
type jsonWriter struct {
	buffer  bytes.Buffer
	encoder *json.Encoder
}

func (w *jsonWriter) beginObject() { w.separate(); w.buffer.WriteByte('{') }
func (w *jsonWriter) endObject()   { w.buffer.WriteByte('}') }
func (w *jsonWriter) beginArray()  { w.separate(); w.buffer.WriteByte('[') }
func (w *jsonWriter) endArray()    { w.buffer.WriteByte(']') }

// name begins a field; its value must follow.
func (w *jsonWriter) name(name string) {
	w.value(name)
	w.buffer.WriteByte(':')
}

func (w *jsonWriter) field(name string, value any) {
	w.name(name)
	w.value(value)
}

// raw writes a value that is JSON already.
func (w *jsonWriter) raw(text []byte) {
	w.separate()
	w.buffer.Write(text)
}

func (w *jsonWriter) value(value any) {
	w.separate()
	if text, ok := value.(string); ok && isPlain(text) {
		w.buffer.WriteByte('"')
		w.buffer.WriteString(text)
		w.buffer.WriteByte('"')
		return
	}
	if w.encoder == nil {
		w.encoder = json.NewEncoder(&w.buffer)
		w.encoder.SetEscapeHTML(false)
	}
	if err := w.encoder.Encode(value); err != nil {
		panic(fmt.Sprintf("api: an answer has a value that is none of JSON's: %v", err))
	}
	w.buffer.Truncate(w.buffer.Len() - len("\n"))
}

// isPlain reports whether text is in JSON what it is, as most names and addresses are.
func isPlain(text string) bool {
	for i := range len(text) {
		if c := text[i]; c < ' ' || c > '~' || c == '"' || c == '\\' {
			return false
		}
	}
	return true
}

// separate writes a comma where a value ended. Only the last byte needs a look: within a string nobody calls it.
func (w *jsonWriter) separate() {
	text := w.buffer.Bytes()
	if len(text) == 0 {
		return
	}
	switch text[len(text)-1] {
	case '{', '[', ':', ',':
	default:
		w.buffer.WriteByte(',')
	}
}

// copyValue writes the decoder's next value, its fields in their order. The value's own bytes may be escaped in ways that
// ours are not.
func (w *jsonWriter) copyValue(d *json.Decoder) error {
	t, err := d.Token()
	if err != nil {
		return err
	}
	switch t {
	case json.Delim('['):
		w.beginArray()
		for d.More() {
			if err := w.copyValue(d); err != nil {
				return err
			}
		}
		w.endArray()
	case json.Delim('{'):
		w.beginObject()
		for d.More() {
			name, err := d.Token()
			if err != nil {
				return err
			}
			w.name(name.(string)) // else Token had failed
			if err := w.copyValue(d); err != nil {
				return err
			}
		}
		w.endObject()
	default:
		w.value(t)
		return nil
	}
	_, err = d.Token() // the end of it
	return err
}

func (w *jsonWriter) bytes() []byte { return w.buffer.Bytes() }
func (w *jsonWriter) len() int      { return w.buffer.Len() }

// newJSONOf returns the body that is one value.
func newJSONOf(value any) *body {
	var w jsonWriter
	w.value(value)
	return newJSON(w.bytes())
}
