package worker

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/evanw/esbuild/pkg/api"

	"golang.org/x/mod/modfile"
)

// What the log says of the minifier is the one that is linked.
func TestMinifierVersion(t *testing.T) {
	path := filepath.Join("..", "..", "go.mod")
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	mod, err := modfile.Parse(path, data, nil)
	if err != nil {
		t.Fatal(err)
	}
	linked := ""
	for _, r := range mod.Require {
		if r.Mod.Path == "github.com/evanw/esbuild" {
			linked = r.Mod.Version
		}
	}
	if _, version, _ := Minifier(); linked != "v"+version {
		t.Errorf("the log says %s, go.mod %s", version, linked)
	}
}

// The options that the log tells are the ones that minify, and mean what they did when they stood in Go.
func TestMinifierOptions(t *testing.T) {
	const script = "/*! legal */\nfunction longName(first, second) { return 'é' + first + second?.third }\nvar unused = 1 + 2;\n"
	want := api.Transform(script, api.TransformOptions{
		Loader: api.LoaderJS, Target: api.ESNext, Charset: api.CharsetUTF8, LegalComments: api.LegalCommentsInline,
		MinifyWhitespace: true, MinifyIdentifiers: true, MinifySyntax: true, TreeShaking: api.TreeShakingFalse, LogLevel: api.LogLevelSilent,
	})
	got, err := minify([]byte(script), api.LoaderJS)
	if err != nil || string(got) != string(want.Code) {
		t.Errorf("%s, %v; want %s", got, err, want.Code)
	}
}

func TestFindImports(t *testing.T) {
	for script, want := range map[string]string{
		"import a from './a.js'; export * from \"b\"; import 'https://cdn.example.com/c.js'; import(x); import('d')": `["./a.js","b","https://cdn.example.com/c.js","d"]`,
		"alert(1)": `[]`,
	} {
		if got, err := findImports([]byte(script)); err != nil || string(got) != want {
			t.Errorf("%s: %s, %v; want %s", script, got, err, want)
		}
	}
	if _, err := findImports([]byte("import {")); err == nil {
		t.Error("of what does not parse")
	}
}

// TestSilent holds that esbuild warns of nothing: the time for the warnings about one line grows with the square of their number.
func TestSilent(t *testing.T) {
	for _, text := range []string{
		"switch(a){case a:case a:}", "a={b:1,b:2}", "a===-0", "a===NaN", "a=!b in c", "class A{a(){}a(){}}", "typeof a==='b'", "eval(a);import.meta",
		"delete super.a", "return\na", "<!-- a", "import*as a from 'a';a()",
	} {
		warnings := api.Transform(text, api.TransformOptions{MinifySyntax: true, LogLevel: api.LogLevelSilent, LogOverride: silentWarnings}).Warnings
		warnings = append(warnings, api.Build(api.BuildOptions{
			Stdin: &api.StdinOptions{Contents: text}, Bundle: true, External: []string{"*"}, LogLevel: api.LogLevelSilent, LogOverride: silentWarnings,
		}).Warnings...)
		if len(warnings) > 0 {
			t.Errorf("%q: %s: %s", text, warnings[0].ID, warnings[0].Text)
		}
	}
}
