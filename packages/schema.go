package packages

import (
	"bytes"
	_ "embed"
	"slices"
	"sync"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

//go:embed schema.json
var schemaJSON []byte

// Schema returns the JSON Schema (draft 2020-12) of a package JSON, for editors
// and for people. Its examples appear in the messages of problems.
func Schema() []byte { return bytes.Clone(schemaJSON) }

// compiledSchema returns the schema ready for use; it is part of the program, so
// one that does not compile is a programming error.
var compiledSchema = sync.OnceValue(func() *jsonschema.Schema {
	const address = "urn:larder:package"
	document, err := jsonschema.UnmarshalJSON(bytes.NewReader(schemaJSON))
	if err != nil {
		panic("packages: schema.json: " + err.Error())
	}
	compiler := jsonschema.NewCompiler()
	if err := compiler.AddResource(address, document); err != nil {
		panic("packages: schema.json: " + err.Error())
	}
	return compiler.MustCompile(address)
})

// schemaAt returns the part of the schema that speaks about the value at
// location, nil where there is none.
func schemaAt(location []string) *jsonschema.Schema {
	s := compiledSchema()
	for _, step := range location {
		if s.Items2020 != nil {
			s = s.Items2020
		} else {
			s = s.Properties[step]
		}
		if s == nil {
			return nil
		}
	}
	return s
}

// homeOf returns the property that holds a property called name, for someone who
// wrote it in the wrong place: "autoupdate" for "target". It is "" where no
// property, or more than one, has it.
func homeOf(name string) string {
	var homes []string
	for property, s := range compiledSchema().Properties {
		if s.Items2020 != nil {
			s = s.Items2020
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
func propertyNames(s *jsonschema.Schema) []string {
	names := make([]string, 0, len(s.Properties))
	for name := range s.Properties {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}
