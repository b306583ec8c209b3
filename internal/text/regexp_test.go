package text

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// A wrong pattern must fail here and not on first use.
func TestPatternsCompile(t *testing.T) {
	root := filepath.Join("..", "..")
	found := 0
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && path != root && (strings.HasPrefix(d.Name(), ".") || d.Name() == "testdata" || d.Name() == "node_modules") {
			return filepath.SkipDir
		}
		if !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return nil
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		ast.Inspect(file, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			selected, ok := call.Fun.(*ast.SelectorExpr)
			if !ok || selected.Sel.Name != "NewRegexp" {
				return true
			}
			if name, ok := selected.X.(*ast.Ident); !ok || name.Name != "text" {
				return true
			}
			found++
			literal, ok := call.Args[0].(*ast.BasicLit)
			if !ok {
				t.Errorf("%s: the pattern is not a literal", path)
				return true
			}
			pattern, err := strconv.Unquote(literal.Value)
			if err == nil {
				_, err = regexp.Compile(pattern)
			}
			if err != nil {
				t.Errorf("%s: %v", path, err)
			}
			return true
		})
		return nil
	})
	if err != nil || found < 30 {
		t.Errorf("found %d patterns, %v", found, err)
	}
}

func TestRegexp(t *testing.T) {
	r := NewRegexp(`^(a+)(b)?`)
	if r.compiled != nil {
		t.Error("New compiled the pattern")
	}
	if !r.MatchString("aab") || r.MatchString("b") || r.FindString("aac") != "aa" || len(r.FindStringSubmatch("aab")) != 3 ||
		r.Get().FindStringSubmatchIndex("aab")[3] != 2 || r.ReplaceAllString("aab", "$2") != "b" || r.ReplaceAllStringFunc("aab!", strings.ToUpper) != "AAB!" {
		t.Error("the results are not those of package regexp")
	}
	if first := r.Get(); first != r.Get() {
		t.Error("the pattern is compiled twice")
	}
}
