package site

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
)

// An openAPI is what of an OpenAPI 3.0 document (https://spec.openapis.org/oas/v3.0.0.html) is
// shown to people. Its maps keep the order of the document.
type openAPI struct {
	Info struct {
		Title       string `json:"title"`
		Version     string `json:"version"`
		Description string `json:"description"`
	} `json:"info"`
	Tags []struct {
		Name        string `json:"name"`
		Description string `json:"description"`
	} `json:"tags"`
	Paths      ordered[pathItem] `json:"paths"`
	Components struct {
		Schemas    ordered[schema]    `json:"schemas"`
		Parameters ordered[parameter] `json:"parameters"`
		Responses  ordered[response]  `json:"responses"`
	} `json:"components"`
}

type pathItem struct {
	Parameters []parameter `json:"parameters"`
	Get        *operation  `json:"get"`
	Head       *operation  `json:"head"`
	Options    *operation  `json:"options"`
	Post       *operation  `json:"post"`
	Put        *operation  `json:"put"`
	Delete     *operation  `json:"delete"`
}

type operation struct {
	Summary     string            `json:"summary"`
	Description string            `json:"description"`
	Tags        []string          `json:"tags"`
	Parameters  []parameter       `json:"parameters"`
	Responses   ordered[response] `json:"responses"`
}

// answers reports whether an operation tells a client something: it succeeds, and not with a
// picture, which only browsers want.
func (op *operation) answers(o *openAPI) bool {
	for _, r := range op.Responses {
		if !strings.HasPrefix(r.Key, "2") {
			continue
		}
		content := o.response(r.Value).Content
		return len(content) == 0 || !strings.HasPrefix(content[0].Key, "image/")
	}
	return len(op.Responses) == 0 // nothing is said of them
}

type parameter struct {
	Ref         string `json:"$ref"`
	Name        string `json:"name"`
	In          string `json:"in"`
	Description string `json:"description"`
	Required    bool   `json:"required"`
	Schema      schema `json:"schema"`
	Example     any    `json:"example"`
}

type response struct {
	Ref         string `json:"$ref"`
	Description string `json:"description"`
	Content     ordered[struct {
		Schema schema `json:"schema"`
	}] `json:"content"`
}

type schema struct {
	Ref         string          `json:"$ref"`
	Type        string          `json:"type"`
	Format      string          `json:"format"`
	Description string          `json:"description"`
	Nullable    bool            `json:"nullable"`
	Enum        []any           `json:"enum"`
	Example     any             `json:"example"`
	Items       *schema         `json:"items"`
	Properties  ordered[schema] `json:"properties"`
	Required    []string        `json:"required"`
	AllOf       []schema        `json:"allOf"`
	OneOf       []schema        `json:"oneOf"`
	AnyOf       []schema        `json:"anyOf"`
	// AdditionalProperties is a schema or a boolean.
	AdditionalProperties json.RawMessage `json:"additionalProperties"`
}

// ordered is a JSON object whose members keep their order.
type ordered[T any] []member[T]

type member[T any] struct {
	Key   string
	Value T
}

func (o *ordered[T]) UnmarshalJSON(data []byte) error {
	d := json.NewDecoder(bytes.NewReader(data))
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return errors.Join(err, errors.New("an object is expected"))
	}
	for d.More() {
		t, err := d.Token()
		if err != nil {
			return err
		}
		m := member[T]{Key: t.(string)} // the decoder lets no other keys through
		if err := d.Decode(&m.Value); err != nil {
			return fmt.Errorf("%s: %w", m.Key, err)
		}
		*o = append(*o, m)
	}
	return nil
}

func (o ordered[T]) find(key string) (T, bool) {
	for _, m := range o {
		if m.Key == key {
			return m.Value, true
		}
	}
	var none T
	return none, false
}

// refName returns the last part of a reference within the document.
func refName(ref string) string { return ref[strings.LastIndexByte(ref, '/')+1:] }

func (o *openAPI) parameter(p parameter) parameter {
	if p.Ref != "" {
		p, _ = o.Components.Parameters.find(refName(p.Ref))
	}
	return p
}

func (o *openAPI) response(r response) response {
	if r.Ref != "" {
		r, _ = o.Components.Responses.find(refName(r.Ref))
	}
	return r
}

// deepest bounds how far schemas are followed.
const deepest = 6

// words describes a schema in a few words.
func (s schema) words(depth int) string {
	var w string
	switch {
	case depth > deepest:
		return "…"
	case s.Ref != "":
		return refName(s.Ref)
	case s.Type == "array" && s.Items != nil:
		w = "array of " + s.Items.words(depth+1)
	case s.Type == "object" && len(s.additional()) > 0:
		w = "object of " + s.additional()[0].words(depth+1)
	case len(s.AllOf) == 1:
		w = s.AllOf[0].words(depth + 1)
	case len(s.OneOf)+len(s.AnyOf) > 0:
		var parts []string
		for _, one := range append(s.OneOf[:len(s.OneOf):len(s.OneOf)], s.AnyOf...) {
			parts = append(parts, one.words(depth+1))
		}
		w = strings.Join(parts, " or ")
	default:
		w = or(s.Type, "any")
		if s.Format != "" {
			w += " (" + s.Format + ")"
		}
	}
	if s.Nullable {
		w += " or null"
	}
	return w
}

// additional returns the schema of an object's further members, none where there is none.
func (s schema) additional() []schema {
	var additional schema
	if len(s.AdditionalProperties) == 0 || s.AdditionalProperties[0] != '{' || json.Unmarshal(s.AdditionalProperties, &additional) != nil {
		return nil
	}
	return []schema{additional}
}

// named returns the name of the schema that s is about, "" where it has none.
func (s schema) named(depth int) string {
	switch {
	case depth > deepest:
		return ""
	case s.Ref != "":
		return refName(s.Ref)
	case s.Items != nil:
		return s.Items.named(depth + 1)
	case len(s.AllOf) > 0:
		return s.AllOf[0].named(depth + 1)
	}
	for _, a := range s.additional() {
		return a.named(depth + 1)
	}
	return ""
}
