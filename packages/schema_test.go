package packages

import (
	"encoding/json"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

// TestSchemaAndTypes holds the Go types to the schema: the same properties, of
// the same kinds, at every level.
func TestSchemaAndTypes(t *testing.T) {
	compareTypes(t, "package", compiledSchema(), reflect.TypeFor[Package]())
}

func compareTypes(t *testing.T, at string, s *jsonschema.Schema, typ reflect.Type) {
	t.Helper()
	if typ.Kind() == reflect.Pointer {
		typ = typ.Elem()
	}
	if reflect.PointerTo(typ).Implements(reflect.TypeFor[json.Unmarshaler]()) { // it may be of several kinds
		for _, example := range s.Examples {
			if err := s.Validate(example); err != nil {
				t.Errorf("%s: example %v: %v", at, example, err)
			}
		}
		return
	}
	want := map[reflect.Kind]string{
		reflect.Struct: "object", reflect.Slice: "array", reflect.String: "string", reflect.Bool: "boolean",
	}[typ.Kind()]
	if got := s.Types.ToStrings(); !slices.Equal(got, []string{want}) {
		t.Errorf("%s: the schema says %v, the Go type is %v", at, got, typ)
		return
	}
	if len(s.Examples) == 0 && at != "package" {
		t.Errorf("%s: the schema has no example; messages show it", at)
	}
	for _, example := range s.Examples {
		if err := s.Validate(example); err != nil {
			t.Errorf("%s: example %v: %v", at, example, err)
		}
	}
	switch typ.Kind() {
	case reflect.Slice:
		compareTypes(t, at+"[]", s.Items2020, typ.Elem())
	case reflect.Struct:
		if s.AdditionalProperties != false {
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
		if names := slices.Sorted(maps.Keys(s.Properties)); !slices.Equal(names, fields) {
			t.Errorf("%s: the schema has %v, the Go type %v", at, names, fields)
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
