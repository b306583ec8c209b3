package packages

import "testing"

func TestSplitSpecifier(t *testing.T) {
	for specifier, want := range map[string][2]string{
		"react": {"react", "."}, "react-dom/client": {"react-dom", "./client"}, "lodash/fp/map": {"lodash", "./fp/map"},
		"@org/a": {"@org/a", "."}, "@org/a/b/c": {"@org/a", "./b/c"}, "@org": {"@org", "."}, "": {"", "."},
	} {
		if name, subpath := SplitSpecifier(specifier); name != want[0] || subpath != want[1] {
			t.Errorf("%s: %s, %s, want %q", specifier, name, subpath, want)
		}
	}
}
