package app

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// maxFields limits the fields of a struct, so that what a part depends on can be seen.
const maxFields = 14

// TestStructs holds the structs of this package, apart from JSON records, to few fields and none that is an embedded pointer: each
// type on top of it has all promoted methods once more, and its dependencies cannot be seen.
func TestStructs(t *testing.T) {
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	structs := 0
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		set := token.NewFileSet()
		file, err := parser.ParseFile(set, name, text, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(n ast.Node) bool {
			spec, ok := n.(*ast.TypeSpec)
			if !ok {
				return true
			}
			body, ok := spec.Type.(*ast.StructType)
			if !ok {
				return true
			}
			structs++
			fields, record := 0, false
			for _, f := range body.Fields.List {
				fields += max(1, len(f.Names))
				record = record || f.Tag != nil
				if _, pointer := f.Type.(*ast.StarExpr); pointer && len(f.Names) == 0 {
					t.Errorf("%s: %s embeds a pointer; give the field a name", set.Position(f.Pos()), spec.Name)
				}
			}
			if fields > maxFields && !record {
				t.Errorf("%s: %s has %d fields, over %d", set.Position(spec.Pos()), spec.Name, fields, maxFields)
			}
			return true
		})
	}
	if structs < 50 {
		t.Errorf("found only %d structs", structs)
	}
}
