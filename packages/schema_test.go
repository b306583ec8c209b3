package packages

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"
	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/santhosh-tekuri/jsonschema/v6/kind"
)

// TestSchemaAndTypes holds the Go types to the schema: the same properties, of
// the same kinds, at every level.
func TestSchemaAndTypes(t *testing.T) {
	compareTypes(t, "package", compiledSchema(), reflect.TypeFor[Package]())
}

func compareTypes(t *testing.T, at string, s *schema, typ reflect.Type) {
	t.Helper()
	if typ.Kind() == reflect.Pointer {
		typ = typ.Elem()
	}
	if reflect.PointerTo(typ).Implements(reflect.TypeFor[json.Unmarshaler]()) { // it may be of several kinds
		for _, example := range s.Examples {
			checkExample(t, at, s, example)
		}
		return
	}
	want := map[reflect.Kind]string{
		reflect.Struct: "object", reflect.Slice: "array", reflect.String: "string", reflect.Bool: "boolean",
	}[typ.Kind()]
	if got := []string(s.Type); !slices.Equal(got, []string{want}) {
		t.Errorf("%s: the schema says %v, the Go type is %v", at, got, typ)
		return
	}
	if len(s.Examples) == 0 && at != "package" {
		t.Errorf("%s: the schema has no example; messages show it", at)
	}
	for _, example := range s.Examples {
		checkExample(t, at, s, example)
	}
	switch typ.Kind() {
	case reflect.Slice:
		compareTypes(t, at+"[]", s.Items, typ.Elem())
	case reflect.Struct:
		if s.AdditionalProperties == nil || *s.AdditionalProperties {
			t.Errorf("%s: the schema lets unknown properties pass", at)
		}
		var fields []string
		for _, field := range reflect.VisibleFields(typ) {
			name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
			if name == "-" || !field.IsExported() {
				continue
			}
			fields = append(fields, name)
			property, ok := s.Properties[name]
			if !ok {
				t.Errorf("%s.%s is in the Go type only", at, name)
				continue
			}
			compareTypes(t, at+"."+name, property, field.Type)
		}
		slices.Sort(fields)
		if names := propertyNames(s); !slices.Equal(names, fields) {
			t.Errorf("%s: the schema has %v, the Go type %v", at, names, fields)
		}
	}
}

func checkExample(t *testing.T, at string, s *schema, example any) {
	t.Helper()
	s.validate(nil, example, func(v violation) {
		t.Errorf("%s: example %v: %s at %q", at, example, v.keyword, v.location)
	})
}

// TestSchemaAsLibrary compares the violations in documents with those that a complete implementation of JSON Schema finds: in the
// documents of testdata, and in each of them with each value replaced by others, or removed.
func TestSchemaAsLibrary(t *testing.T) {
	t.Parallel()
	golden, err := txtar.ParseFile(filepath.Join("testdata", "problems.txtar"))
	if err != nil {
		t.Fatal(err)
	}
	var documents [][]byte
	for _, file := range golden.Files {
		if strings.HasSuffix(file.Name, ".json") && json.Valid(file.Data) {
			documents = append(documents, file.Data)
		}
	}
	complete, err := json.Marshal(exampleFor(compiledSchema()))
	if err != nil {
		t.Fatal(err)
	}
	documents = append(documents, complete)
	compared, keywords := 0, map[string]bool{}
	for i, data := range documents {
		var document any
		if err := json.Unmarshal(data, &document); err != nil {
			t.Fatal(err)
		}
		compare := func() {
			compared++
			compareWithLibrary(t, document, keywords)
		}
		compare()
		if i%8 == 0 || i == len(documents)-1 {
			alter(document, compare)
		}
	}
	if want := []string{"additionalProperties", "enum", "maxItems", "maxLength", "minItems", "minLength", "pattern", "required", "type", "uniqueItems"}; !slices.Equal(slices.Sorted(maps.Keys(keywords)), want) {
		t.Errorf("the documents violate %v", slices.Sorted(maps.Keys(keywords)))
	}
	t.Logf("%d documents, %d compared", len(documents), compared)
	if compared < 1000 {
		t.Errorf("%d documents were compared", compared)
	}
}

// librarySchema is the schema as a complete implementation has it.
var librarySchema = sync.OnceValue(func() *jsonschema.Schema {
	document, err := jsonschema.UnmarshalJSON(bytes.NewReader(Schema()))
	if err != nil {
		panic(err)
	}
	compiler := jsonschema.NewCompiler()
	if err := compiler.AddResource("urn:larder:package", document); err != nil {
		panic(err)
	}
	return compiler.MustCompile("urn:larder:package")
})

// compareWithLibrary compares the violations of a document, and adds their keywords to keywords.
func compareWithLibrary(t *testing.T, document any, keywords map[string]bool) {
	t.Helper()
	var got, want []string
	compiledSchema().validate(nil, document, func(v violation) {
		keywords[v.keyword] = true
		got = append(got, fmt.Sprint(v.location, v.keyword, slices.Sorted(slices.Values(v.names)), v.repeated))
	})
	var collect func(err *jsonschema.ValidationError)
	collect = func(err *jsonschema.ValidationError) {
		for _, cause := range err.Causes {
			collect(cause)
		}
		if len(err.Causes) > 0 {
			return
		}
		var names []string
		var repeated [2]int
		switch k := err.ErrorKind.(type) {
		case *kind.Required:
			names = k.Missing
		case *kind.AdditionalProperties:
			names = k.Properties
		case *kind.UniqueItems:
			repeated = k.Duplicates
		}
		path := err.ErrorKind.KeywordPath()
		want = append(want, fmt.Sprint(err.InstanceLocation, path[len(path)-1], slices.Sorted(slices.Values(names)), repeated))
	}
	var invalid *jsonschema.ValidationError
	if err := librarySchema().Validate(document); errors.As(err, &invalid) {
		collect(invalid)
	} else if err != nil {
		t.Fatal(err)
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		data, _ := json.Marshal(document)
		t.Errorf("%.2000s:\n%q, want\n%q", data, got, want)
	}
}

// exampleFor returns a value with each property that the schema has.
func exampleFor(s *schema) any {
	switch {
	case s.Properties != nil:
		object := map[string]any{}
		for name, property := range s.Properties {
			object[name] = exampleFor(property)
		}
		return object
	case s.Items != nil && s.Items.Properties != nil:
		return []any{exampleFor(s.Items)}
	default:
		return s.Examples[0]
	}
}

// alter calls check with each value inside of document replaced in turn, removed, and beside another, and restores it.
func alter(document any, check func()) {
	long := make([]any, 501)
	for i := range long {
		long[i] = fmt.Sprintf("./%d", i)
	}
	others := []any{nil, true, 1.5, 7.0, "", " ", "é", "npm", ".", "./x", "https://github.com/a/b", strings.Repeat("é", 500), strings.Repeat("x", 1001),
		[]any{}, []any{"a", "a"}, []any{"b", "", "b"}, []any{"."}, []any{map[string]any{}}, []any{[]any{}}, long, map[string]any{}, map[string]any{"name": "x"}}
	switch v := document.(type) {
	case map[string]any:
		for _, name := range slices.Sorted(maps.Keys(v)) {
			before := v[name]
			alter(before, check)
			for _, v[name] = range others {
				check()
			}
			delete(v, name)
			check()
			v[name], v["no such property"] = before, before
			check()
			delete(v, "no such property")
		}
	case []any:
		for i, before := range v {
			alter(before, check)
			for _, v[i] = range others {
				check()
			}
			v[i] = before
		}
	}
}

func TestSchemaIsDraft202012(t *testing.T) {
	var document struct {
		Schema string `json:"$schema"`
	}
	if err := json.Unmarshal(Schema(), &document); err != nil {
		t.Fatal(err)
	}
	if want := "https://json-schema.org/draft/2020-12/schema"; document.Schema != want {
		t.Errorf("$schema is %q, want %q", document.Schema, want)
	}
}
