package packages

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"sync"
	"unicode/utf8"
)

//go:embed schema.json
var schemaJSON []byte

// Schema returns the JSON Schema (draft 2020-12) of a package JSON, for editors
// and for people. Its examples appear in the messages of problems.
func Schema() []byte { return bytes.Clone(schemaJSON) }

// schema is a JSON Schema with the keywords that schema.json uses. A complete implementation compiles the schemas of all
// drafts before main, in each process and each worker, which takes longer than everything else before main. A test compares
// the two.
type schema struct {
	Schema      string `json:"$schema"`
	ID          string `json:"$id"`
	Comment     string `json:"$comment"` // says in words what Pattern allows
	Title       string
	Description string
	Examples    []any

	Type                 types
	Enum                 []string
	Required             []string
	AdditionalProperties *bool // every object has false
	Properties           map[string]*schema
	Items                *schema
	MinItems, MaxItems   *int
	UniqueItems          bool
	MinLength, MaxLength *int
	Pattern              *regexp.Regexp
}

// types are the types of values that a schema accepts.
type types []string

// UnmarshalJSON reads the name of a type, or a list of them.
func (t *types) UnmarshalJSON(data []byte) error {
	if data[0] == '[' {
		return json.Unmarshal(data, (*[]string)(t))
	}
	*t = make(types, 1)
	return json.Unmarshal(data, &(*t)[0])
}

// compiledSchema returns the schema ready for use; it is part of the program, so one that has another keyword is a programming
// error.
var compiledSchema = sync.OnceValue(func() *schema {
	decoder := json.NewDecoder(bytes.NewReader(schemaJSON))
	decoder.DisallowUnknownFields()
	s := &schema{}
	if err := decoder.Decode(s); err != nil {
		panic("packages: schema.json: " + err.Error())
	}
	return s
})

// A violation is a keyword of a schema that a value does not satisfy.
type violation struct {
	schema   *schema
	keyword  string
	location []string
	value    any
	names    []string // of properties that are missing, or that must not be there
	repeated [2]int   // the indexes of two equal items
}

// validate calls report for each keyword that value, the one at location, does not satisfy. value is as encoding/json decodes it.
// Properties are checked in the order of their names.
func (s *schema) validate(location []string, value any, report func(violation)) {
	violate := func(keyword string) {
		report(violation{schema: s, keyword: keyword, location: location, value: value})
	}
	if !slices.Contains(s.Type, typeOf(value)) {
		violate("type")
		return
	}
	switch v := value.(type) {
	case map[string]any:
		s.validateObject(location, v, report)
	case []any:
		if s.MinItems != nil && len(v) < *s.MinItems {
			violate("minItems")
		}
		if s.MaxItems != nil && len(v) > *s.MaxItems {
			violate("maxItems")
		}
		if first, second := findRepeated(v); s.UniqueItems && second > 0 {
			report(violation{schema: s, keyword: "uniqueItems", location: location, value: value, repeated: [2]int{first, second}})
		}
		for i, item := range v {
			if s.Items != nil {
				s.Items.validate(append(slices.Clip(location), strconv.Itoa(i)), item, report)
			}
		}
	case string:
		if s.Enum != nil && !slices.Contains(s.Enum, v) {
			violate("enum")
			return
		}
		length := utf8.RuneCountInString(v)
		if s.MinLength != nil && length < *s.MinLength {
			violate("minLength")
		}
		if s.MaxLength != nil && length > *s.MaxLength {
			violate("maxLength")
		}
		if s.Pattern != nil && !s.Pattern.MatchString(v) {
			violate("pattern")
		}
	}
}

// validateObject is validate for an object.
func (s *schema) validateObject(location []string, object map[string]any, report func(violation)) {
	listed := func(keyword string, names []string) {
		if len(names) > 0 {
			report(violation{schema: s, keyword: keyword, location: location, value: object, names: names})
		}
	}
	listed("required", slices.DeleteFunc(slices.Clone(s.Required), func(name string) bool {
		_, has := object[name]
		return has
	}))
	var unknown []string
	for _, name := range slices.Sorted(maps.Keys(object)) {
		if property, ok := s.Properties[name]; ok {
			property.validate(append(slices.Clip(location), name), object[name], report)
		} else {
			unknown = append(unknown, name)
		}
	}
	listed("additionalProperties", unknown)
}

// typeOf returns the JSON type of a decoded value.
func typeOf(value any) string {
	switch value.(type) {
	case nil:
		return "null"
	case bool:
		return "boolean"
	case string:
		return "string"
	case []any:
		return "array"
	case map[string]any:
		return "object"
	default:
		return "number"
	}
}

// findRepeated returns the indexes of the first string that is there before, and of that one; 0, 0 if there is none. What is not
// a string is a violation by itself, as the items of all lists without repetition are strings.
func findRepeated(items []any) (first, second int) {
	seen := make(map[string]int)
	for i, item := range items {
		text, ok := item.(string)
		if !ok {
			continue
		}
		if at, has := seen[text]; has {
			return at, i
		}
		seen[text] = i
	}
	return 0, 0
}

// schemaAt returns the part of the schema for the value at a location, nil if the schema does not describe it.
func schemaAt(location []string) *schema {
	s := compiledSchema()
	for _, step := range location {
		if s.Items != nil {
			s = s.Items
		} else {
			s = s.Properties[step]
		}
		if s == nil {
			return nil
		}
	}
	return s
}

// parentPropertyOf returns the property in which a property with that name belongs, such as "autoupdate" for "target"; "" if none, or
// more than one, can have it.
func parentPropertyOf(name string) string {
	var homes []string
	for property, s := range compiledSchema().Properties {
		if s.Items != nil {
			s = s.Items
		}
		if _, ok := s.Properties[name]; ok {
			homes = append(homes, property)
		}
	}
	if len(homes) != 1 {
		return ""
	}
	return homes[0]
}

// propertyNames returns the names that the object described by s may have, sorted.
func propertyNames(s *schema) []string { return slices.Sorted(maps.Keys(s.Properties)) }
