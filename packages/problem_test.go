package packages

import "testing"

func TestProblemAt(t *testing.T) {
	const data = "{\n  \"description\": \"größer\", \"keywords\": [\"é\", \"ü\"]\n}"
	tests := []struct {
		data     string
		location []string
		want     Problem
	}{
		{data, []string{"description"}, Problem{Line: 2, Column: 18, Property: "description"}},
		{data, []string{"keywords", "1"}, Problem{Line: 2, Column: 46, Property: "keywords[1]"}},
		{data, []string{"autoupdate", "target"}, Problem{Line: 1, Column: 1, Property: "autoupdate.target"}},
		{data, nil, Problem{Line: 1, Column: 1}},
		{"no JSON", []string{"name"}, Problem{Line: 1, Column: 1, Property: "name"}},
		{"", nil, Problem{Line: 1, Column: 1}},
	}
	for _, tt := range tests {
		tt.want.Rule, tt.want.Message, tt.want.Severity = "some-rule", "Message.", Warning
		if got := ProblemAt([]byte(tt.data), Warning, "some-rule", "Message.", tt.location...); got != tt.want {
			t.Errorf("%q %q:\ngot  %+v\nwant %+v", tt.data, tt.location, got, tt.want)
		}
	}
}

func TestGlobUses(t *testing.T) {
	p, err := Parse("", documentWith(t, []FileSet{{"dist", []string{"*.js", "*.css"}}, {"", []string{"**/*.js"}}}, nil))
	if err != nil {
		t.Fatal(err)
	}
	want := []GlobUse{{0, 0, 1}, {0, 1, 0}, {1, 0, 2}}
	got := p.GlobUses([]string{"dist/a.js", "src/b.js", "README"})
	if len(got) != len(want) {
		t.Fatalf("got %v, want %v", got, want)
	}
	for i := range want {
		if got[i] != want[i] {
			t.Errorf("got %v, want %v", got[i], want[i])
		}
	}
}
