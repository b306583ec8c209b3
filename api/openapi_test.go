package api

import (
	"encoding/json"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/routers"

	"github.com/larder-cdn/larder/logs"
)

func routeOf(item *openapi3.PathItem) *routers.Route {
	return &routers.Route{Spec: document, PathItem: item, Method: "GET", Operation: item.Get}
}

func TestOpenAPIDocument(t *testing.T) {
	if err := document.Validate(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"Error", "Library", "LibraryVersion"} {
		if document.Components.Schemas[name] == nil {
			t.Errorf("there is no schema %s", name)
		}
	}
	for path, item := range document.Paths.Map() {
		if item.Get == nil || len(item.Operations()) != 1 {
			t.Errorf("%s is for more than GET", path)
		} else if item.Get.Summary == "" || item.Get.Description == "" || len(item.Get.Tags) != 1 || document.Tags.Get(item.Get.Tags[0]) == nil {
			t.Errorf("%s says too little", path)
		}
	}
}

// Every route is in the document, and all that is in the document has a route.
func TestOpenAPIRoutes(t *testing.T) {
	var routes []string
	parameter := regexp.MustCompile(`:(\w+)`)
	for _, r := range newPublic(PublicOptions{Logger: quiet}).newHandler().Routes() {
		if r.Method == "GET" && (r.Path == "/" || !strings.HasSuffix(r.Path, "/")) {
			routes = append(routes, parameter.ReplaceAllString(r.Path, "{$1}"))
		}
	}
	routes = append(routes, "/download/{library}/{archive}") // mounted
	slices.Sort(routes)
	var documented []string
	for path := range document.Paths.Map() {
		documented = append(documented, path)
	}
	slices.Sort(documented)
	equal(t, "paths of the document", documented, routes)
}

// Schemas and parameters name the fields that there are.
func TestOpenAPIFields(t *testing.T) {
	for schema, fields := range map[string]vocabulary{
		"LibraryResult": slices.Concat(resultFields, factFields), "Library": slices.Concat(libraryFields, factFields), "LibraryVersion": versionFields, "Stats": statsFields, "Whitelist": whitelistFields,
	} {
		got := make([]string, 0)
		for name := range document.Components.Schemas[schema].Value.Properties {
			got = append(got, name)
		}
		slices.Sort(got)
		equal(t, schema, got, slices.Sorted(slices.Values(fields)))
	}
	for path, fields := range map[string]vocabulary{
		"/libraries": slices.Concat(resultFields, factFields), "/libraries/{library}": slices.Concat(libraryFields, factFields), "/libraries/{library}/{version}": versionFields, "/stats": statsFields, "/whitelist": whitelistFields,
	} {
		text := document.Paths.Find(path).Get.Parameters.GetByInAndName("query", "fields").Description
		for _, name := range fields {
			if !strings.Contains(text, "`"+name+"`") {
				t.Errorf("fields of %s: no word of %s", path, name)
			}
		}
	}
}

// The schema of entries has the fields and the kinds that entries have.
func TestOpenAPIEntries(t *testing.T) {
	schema := document.Components.Schemas["LogEntry"].Value
	equalFields(t, "entry", schema, reflect.TypeFor[logs.Entry](), "index")
	kinds := make([]any, len(logs.Kinds))
	text := document.Components.Parameters["LogKind"].Value.Description
	for i, kind := range logs.Kinds {
		kinds[i] = string(kind)
		if !strings.Contains(text, "`"+string(kind)+"`") {
			t.Errorf("the parameter says no word of %s", kind)
		}
	}
	equal(t, "kinds", schema.Properties["kind"].Value.Enum, kinds)
}

// equalFields compares the properties of an object's schema, and of objects in it, with the fields of the type that is encoded and
// others.
func equalFields(t *testing.T, name string, schema *openapi3.Schema, encoded reflect.Type, others ...string) {
	t.Helper()
	want := others
	for field := range encoded.Fields() {
		property, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		want = append(want, property)
		inner := field.Type
		if inner.Kind() == reflect.Pointer {
			inner = inner.Elem()
		}
		if p := schema.Properties[property]; p != nil && p.Value.Type.Is("object") && inner.Kind() == reflect.Struct {
			equalFields(t, name+"."+property, p.Value, inner)
		}
	}
	slices.Sort(want)
	equal(t, "fields of "+name, slices.Sorted(maps.Keys(schema.Properties)), want)
}

func TestOpenAPIIsServed(t *testing.T) {
	s := newService(t, func(o *PublicOptions) { o.Name = `O'Larder "&"` })
	for _, tt := range []struct{ target, host, server string }{
		{"/openapi.json", "somewhere.example:8080", siteBase},
		{"/openapi.json/", "API.Example", "http://api.example"},
		{"/api", "api.example", "http://api.example"},
		{"/api/", "api.example:443", "http://api.example"},
	} {
		got := s.get(tt.target, "Host: "+tt.host)
		var doc struct {
			OpenAPI string
			Info    struct{ Title string }
			Servers []struct{ URL string }
		}
		if err := json.Unmarshal([]byte(got.body), &doc); err != nil {
			t.Fatal(err)
		}
		if got.status != 200 || doc.OpenAPI != "3.0.0" || doc.Info.Title != `O'Larder "&" API` || len(doc.Servers) != 1 || doc.Servers[0].URL != tt.server {
			t.Errorf("%s at %s: %d %+v", tt.target, tt.host, got.status, doc)
		}
		equal(t, "Cache-Control", got.get("Cache-Control"), "public, max-age=21600")
	}
	if got := s.get("/api", "Host: elsewhere.example"); got.status != 404 {
		t.Errorf("/api without a site: %d", got.status)
	}
}
