package site

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/larder-cdn/larder/api/library"
	"github.com/larder-cdn/larder/internal/text"
)

// docsReference is the documentation of the API, made from its OpenAPI document.
type docsReference struct {
	Title, Description string
	Base               string // URL in front of the API's paths; set for each request
	Groups             []docsGroup
	Schemas            []docsSchema
}

// docsGroup is a group of operations, which has a page of its own.
type docsGroup struct {
	ID, Name, Description string // ID is the last part of its page's path
	Operations            []docsOperation
}

// docsGroupPage is the data of the page of one group.
type docsGroupPage struct {
	docsGroup
	Groups []docsGroup // all of them, for links
}

// docsSchemasPage is the data of the page of the schemas.
type docsSchemasPage struct {
	Schemas []docsSchema
	Groups  []docsGroup // for links
}

// A docsOperation is a method on a path of the API.
type docsOperation struct {
	ID, Method, Path     string
	Summary, Description string
	Parameters           []parameter // references are resolved
	Responses            []docsResponse
	Failures             []docsResponse // responses with a status from 400 on, or "default"
	path                 string         // with the document's examples of parameters, and the query
	Example              string         // a curl command, set by addExamples
}

// A docsResponse is a response of an operation. Type is its content type, and the type of its schema after a colon.
type docsResponse struct {
	Status, Description, Type string
	Schema                    string // path of the documentation of its schema, "" for none
}

// A docsSchema is a schema that the document defines.
type docsSchema struct {
	ID, Name, Description, Type string
	Properties                  []docsProperty
}

// A docsProperty is a property of a schema.
type docsProperty struct {
	Name, Type, Description string
	Schema                  string // as in docsResponse
	Required                bool
}

// docsPage returns the page that lists the routes of the API by group. It returns an error if the OpenAPI document is
// malformed.
func (s *Site) docsPage(q *request) (*pageAnswer, error) {
	reference, err := s.readReference()
	if err != nil {
		return nil, err
	}
	reference.Base = q.siteBase
	return &pageAnswer{
		view: "docs", Title: "API", canonical: "/docs", Section: "/docs", Data: reference,
		Description: "The REST API of " + s.options.Name + ": all of its routes, by what they are about.",
	}, nil
}

// docsPartPage returns the page of one group of the API's routes, or of the API's schemas, which the last part of the path
// names by the group's ID or as "schemas". For another name it returns a refusal with status 404.
func (s *Site) docsPartPage(q *request) (*pageAnswer, error) {
	reference, err := s.readReference()
	if err != nil {
		return nil, err
	}
	id := q.segments[0]
	a := &pageAnswer{canonical: "/docs/" + id, Section: "/docs"}
	if id == "schemas" && len(reference.Schemas) > 0 {
		a.view, a.Title, a.Data = "docsschemas", "Schemas of the API", docsSchemasPage{reference.Schemas, reference.Groups}
		a.Description = "The JSON objects of the REST API of " + s.options.Name + ", and what each of their members is."
		return a, nil
	}
	i := slices.IndexFunc(reference.Groups, func(g docsGroup) bool { return g.ID == id })
	if i < 0 {
		return nil, &refusal{http.StatusNotFound, "Page not found", "The API's documentation has no page at this address.", ""}
	}
	group := reference.Groups[i]
	if group.Operations, err = s.addExamples(q, group.Operations); err != nil {
		return nil, err
	}
	a.view, a.Title, a.Data = "docsgroup", "API: "+group.Name, docsGroupPage{group, reference.Groups}
	a.Description = "The routes of the REST API of " + s.options.Name + " about " + strings.ToLower(group.Name) + ": parameters, responses, and an example to run for each."
	return a, nil
}

// addExamples returns a copy of operations, each with a curl command as its example, which requests the operation's path
// with GET. Path parameters for which the OpenAPI document has no example get values of the most popular library here, or
// of jquery if no library is published. It waits for the first listing of libraries.
func (s *Site) addExamples(q *request, operations []docsOperation) ([]docsOperation, error) {
	example := &library.Library{Name: "jquery", Version: "3.7.1"}
	popular, err := s.library.Popular(q.Context(), 1)
	if err != nil {
		return nil, err
	}
	if len(popular) > 0 {
		example = popular[0]
	}
	operations = slices.Clone(operations)
	for i, o := range operations {
		operations[i].Example = "curl --compressed '" + strings.ReplaceAll(q.siteBase+o.fillPath(example), "'", "%27") + "'"
	}
	return operations, nil
}

// readReference returns the API's documentation, made from its OpenAPI document. It is cached until the document changes,
// so the caller must not change what the result points to.
func (s *Site) readReference() (docsReference, error) {
	document := s.options.Document()
	return s.references.Get(string(document), func() (docsReference, int, error) {
		reference, err := newDocsReference(document)
		return reference, 0, err
	})
}

// newDocsReference returns the documentation of an API from its OpenAPI document, a JSON text: its operations by their
// first tag, in a group "Routes" without one, and its schemas. It leaves out operations for which isDocumented is false,
// and groups without operations. It returns an error if the document cannot be parsed.
func newDocsReference(document []byte) (docsReference, error) {
	var o openAPI
	if err := json.Unmarshal(document, &o); err != nil {
		return docsReference{}, fmt.Errorf("site: the OpenAPI document: %w", err)
	}
	page := docsReference{Title: cmp.Or(o.Info.Title, "API"), Description: o.Info.Description}
	for _, t := range o.Tags {
		page.Groups = append(page.Groups, docsGroup{ID: newAnchor(t.Name), Name: t.Name, Description: t.Description})
	}
	for _, p := range o.Paths {
		for _, m := range []struct {
			method string
			*operation
		}{{"GET", p.Value.Get}, {"HEAD", p.Value.Head}, {"POST", p.Value.Post}, {"PUT", p.Value.Put}, {"DELETE", p.Value.Delete}} {
			if m.operation == nil || !m.isDocumented(&o) {
				continue
			}
			group := "Routes"
			if len(m.Tags) > 0 {
				group = m.Tags[0]
			}
			i := slices.IndexFunc(page.Groups, func(g docsGroup) bool { return g.Name == group })
			if i < 0 {
				i = len(page.Groups)
				page.Groups = append(page.Groups, docsGroup{ID: newAnchor(group), Name: group})
			}
			page.Groups[i].Operations = append(page.Groups[i].Operations, o.newOperation(m.method, p.Key, p.Value, m.operation))
		}
	}
	page.Groups = slices.DeleteFunc(page.Groups, func(g docsGroup) bool { return len(g.Operations) == 0 })
	for _, s := range o.Components.Schemas {
		page.Schemas = append(page.Schemas, o.newSchema(s.Key, s.Value))
	}
	return page, nil
}

// newOperation returns the operation op, of a method on a path of the API, as its page displays it: with references
// resolved, and example values of the document filled into the path and the query. Responses with a status from 400 on, or
// "default", are failures. item is the path's entry in the document; its parameters apply to all methods. Parameters
// without a name are left out.
func (o *openAPI) newOperation(method, path string, item pathItem, op *operation) docsOperation {
	d := docsOperation{ID: newAnchor(method + " " + path), Method: method, Path: path, Summary: op.Summary, Description: op.Description, path: path}
	var query []string
	for _, p := range slices.Concat(item.Parameters, op.Parameters) {
		p = o.Components.Parameters.resolve(p.Ref, p)
		if p.Name == "" {
			continue
		}
		example := p.Example
		if example == nil {
			example = p.Schema.Example
		}
		switch {
		case example == nil:
		case p.In == "path":
			d.path = strings.ReplaceAll(d.path, "{"+p.Name+"}", url.PathEscape(fmt.Sprint(example)))
		case p.In == "query":
			query = append(query, p.Name, fmt.Sprint(example))
		}
		d.Parameters = append(d.Parameters, p)
	}
	d.path = withQuery(d.path, encodeQuery(query...))
	for _, r := range op.Responses {
		resolved := o.Components.Responses.resolve(r.Value.Ref, r.Value)
		response := docsResponse{Status: r.Key, Description: resolved.Description}
		if len(resolved.Content) > 0 {
			content := resolved.Content[0]
			response.Type = content.Key
			if content.Value.Schema.Type != "" || content.Value.Schema.Ref != "" {
				response.Type += ": " + content.Value.Schema.describe(0)
			}
			response.Schema = o.schemaPath(content.Value.Schema)
		}
		if response.Status >= "400" {
			d.Failures = append(d.Failures, response)
		} else {
			d.Responses = append(d.Responses, response)
		}
	}
	return d
}

// FailureStatuses returns the HTTP statuses of the operation's failures, separated by commas and in the order of the
// document.
func (d docsOperation) FailureStatuses() string {
	statuses := make([]string, len(d.Failures))
	for i, f := range d.Failures {
		statuses[i] = f.Status
	}
	return strings.Join(statuses, ", ")
}

// newSchema returns the schema s of the document, called name, as its page displays it: with its own properties and then
// those of the schemas that it combines (allOf), whose references it resolves.
func (o *openAPI) newSchema(name string, s schema) docsSchema {
	d := docsSchema{ID: "schema-" + newAnchor(name), Name: name, Description: s.Description, Type: s.describe(0)}
	add := func(s schema) {
		for _, p := range s.Properties {
			d.Properties = append(d.Properties, docsProperty{
				Name: p.Key, Type: p.Value.describe(0), Description: p.Value.Description,
				Schema: o.schemaPath(p.Value), Required: slices.Contains(s.Required, p.Key),
			})
		}
	}
	add(s)
	for _, part := range s.AllOf {
		add(o.Components.Schemas.resolve(part.Ref, part))
	}
	return d
}

// schemaPath returns the path, with a fragment, of the documentation of the schema that schemaName returns for s; "" if
// that is "" or the document does not define it.
func (o *openAPI) schemaPath(s schema) string {
	name := s.schemaName(0)
	if _, ok := o.Components.Schemas.find(name); !ok {
		return ""
	}
	return "/docs/schemas#schema-" + newAnchor(name)
}

// fillPath returns the path and query of the operation. Path parameters without an example get values of the library l by
// their names: its name, its version or 1.0.0, its main file or index.js. Parameters with other names stay as they are, in
// braces.
func (d docsOperation) fillPath(l *library.Library) string {
	return parameterInPath.ReplaceAllStringFunc(d.path, func(p string) string {
		switch strings.ToLower(p[1 : len(p)-1]) {
		case "version", "v":
			return url.PathEscape(cmp.Or(l.Version, "1.0.0"))
		case "library", "package", "name", "l", "p":
			return url.PathEscape(l.Name)
		case "file", "path", "filename":
			return url.PathEscape(cmp.Or(l.Filename, "index.js"))
		}
		return p
	})
}

var (
	parameterInPath = text.NewRegexp(`\{[^{}/]*\}`)
	notInAnchors    = text.NewRegexp(`[^a-z0-9]+`)
)

// newAnchor returns a text in the form of an HTML identifier: in lower case, with each run of characters other than ASCII
// letters and digits replaced by one hyphen, and without hyphens at the ends. Different texts may get the same identifier.
func newAnchor(text string) string {
	return strings.Trim(notInAnchors.ReplaceAllString(strings.ToLower(text), "-"), "-")
}

// A span is a run of prose or of code in a text.
type span struct {
	Text string
	Code bool
}

// splitCode splits a text at backquotes into spans, which are prose and code in turn, beginning with prose. The backquotes
// are not part of them. It leaves out empty spans, and returns nil for "".
func splitCode(text string) []span {
	var spans []span
	for i, part := range strings.Split(text, "`") {
		if part != "" {
			spans = append(spans, span{part, i%2 == 1})
		}
	}
	return spans
}

// An openAPI is the part of an OpenAPI 3.0 document (https://spec.openapis.org/oas/v3.0.0.html) that pages display. Its
// maps keep the order of the document.
type openAPI struct {
	Info struct {
		Title       string `json:"title"`
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

// A pathItem has the operations on a path, nil for methods that the path does not have, and the parameters of all of them.
type pathItem struct {
	Parameters []parameter `json:"parameters"`
	Get        *operation  `json:"get"`
	Head       *operation  `json:"head"`
	Post       *operation  `json:"post"`
	Put        *operation  `json:"put"`
	Delete     *operation  `json:"delete"`
}

// An operation is a method on a path in the document.
type operation struct {
	Summary     string            `json:"summary"`
	Description string            `json:"description"`
	Tags        []string          `json:"tags"`
	Parameters  []parameter       `json:"parameters"`
	Responses   ordered[response] `json:"responses"`
}

// isDocumented reports whether the documentation lists an operation: the first content type of its first 2xx response is no
// image, or that response has no content, or op has no responses at all. It is false for an operation with other responses
// only. o is the document, in which references are resolved.
func (op *operation) isDocumented(o *openAPI) bool {
	for _, r := range op.Responses {
		if !strings.HasPrefix(r.Key, "2") {
			continue
		}
		content := o.Components.Responses.resolve(r.Value.Ref, r.Value).Content
		return len(content) == 0 || !strings.HasPrefix(content[0].Key, "image/")
	}
	return len(op.Responses) == 0 // nothing is said of them
}

// A parameter is a parameter in the document, or a reference to one. In is its place, such as path or query.
type parameter struct {
	Ref         string `json:"$ref"`
	Name        string `json:"name"`
	In          string `json:"in"`
	Description string `json:"description"`
	Required    bool   `json:"required"`
	Schema      schema `json:"schema"`
	Example     any    `json:"example"`
}

// Type returns the type of the parameter in a few words.
func (p parameter) Type() string { return p.Schema.describe(0) }

// A response is a response in the document, or a reference to one. Content is by content type.
type response struct {
	Ref         string `json:"$ref"`
	Description string `json:"description"`
	Content     ordered[struct {
		Schema schema `json:"schema"`
	}] `json:"content"`
}

// A schema is a schema in the document, or a reference to one.
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

// An ordered is a JSON object whose members keep their order.
type ordered[T any] []member[T]

// A member is a member of a JSON object.
type member[T any] struct {
	Key   string
	Value T
}

// UnmarshalJSON implements json.Unmarshaler: it decodes a JSON object and appends its members to o in their order. Any
// other JSON value is an error. With an error, o may have some of the members.
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

// find returns the value of the first member with this key. Without one it returns the zero value and false.
func (o ordered[T]) find(key string) (T, bool) {
	for _, m := range o {
		if m.Key == key {
			return m.Value, true
		}
	}
	var none T
	return none, false
}

// refName returns the part of a reference after its last slash, such as Library of #/components/schemas/Library.
func refName(ref string) string { return ref[strings.LastIndexByte(ref, '/')+1:] }

// resolve returns the component of o to which ref refers, the zero value if the document does not define it, or value, which
// has that reference, if ref is "". It does not follow a reference to another reference.
func (o ordered[T]) resolve(ref string, value T) T {
	if ref != "" {
		value, _ = o.find(refName(ref))
	}
	return value
}

// deepest is the depth at which describe and schemaName stop to follow schemas within schemas.
const deepest = 6

// describe returns the type of a schema in a few words, such as "array of string or null"; for a reference, the name of the
// schema to which it refers. depth is how many schemas contain s, 0 at first; beyond deepest it returns an ellipsis.
func (s schema) describe(depth int) string {
	var w string
	switch {
	case depth > deepest:
		return "…"
	case s.Ref != "":
		return refName(s.Ref)
	case s.Type == "array" && s.Items != nil:
		w = "array of " + s.Items.describe(depth+1)
	case s.Type == "object" && len(s.additionalProperties()) > 0:
		w = "object of " + s.additionalProperties()[0].describe(depth+1)
	case len(s.AllOf) == 1:
		w = s.AllOf[0].describe(depth + 1)
	case len(s.OneOf)+len(s.AnyOf) > 0:
		var parts []string
		for _, one := range append(s.OneOf[:len(s.OneOf):len(s.OneOf)], s.AnyOf...) {
			parts = append(parts, one.describe(depth+1))
		}
		w = strings.Join(parts, " or ")
	default:
		w = cmp.Or(s.Type, "any")
		if s.Format != "" {
			w += " (" + s.Format + ")"
		}
	}
	if s.Nullable {
		w += " or null"
	}
	return w
}

// additionalProperties returns a slice with the one schema of an object's additional properties. It returns nil if the
// document has none, or a boolean or a malformed schema in its place.
func (s schema) additionalProperties() []schema {
	var additional schema
	if len(s.AdditionalProperties) == 0 || s.AdditionalProperties[0] != '{' || json.Unmarshal(s.AdditionalProperties, &additional) != nil {
		return nil
	}
	return []schema{additional}
}

// schemaName returns the name of the schema to which s refers. If s is no reference, it looks at its items, else at the
// first schema that it combines (allOf), else at its additional properties. It returns "" if it finds no reference. depth
// is how many schemas contain s, 0 at first; beyond deepest it returns "".
func (s schema) schemaName(depth int) string {
	switch {
	case depth > deepest:
		return ""
	case s.Ref != "":
		return refName(s.Ref)
	case s.Items != nil:
		return s.Items.schemaName(depth + 1)
	case len(s.AllOf) > 0:
		return s.AllOf[0].schemaName(depth + 1)
	}
	for _, a := range s.additionalProperties() {
		return a.schemaName(depth + 1)
	}
	return ""
}
