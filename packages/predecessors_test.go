package packages

import (
	"slices"
	"strings"
	"testing"
)

func TestPredecessors(t *testing.T) {
	for _, tt := range []struct{ version, others, want string }{
		{"3.7.1", "3.7.0 3.6.4 3.6.0 2.2.4 1.12.4 3.8.0 4.0.0-beta", "3.7.0 3.6.4 2.2.4"},
		{"3.7.2", "3.7.0 3.7.1 3.7.2 3.7.10", "3.7.1"},
		{"3.8.0", "3.7.10 3.7.9 3.6.0", "3.7.10"},
		{"3.7.1", "3.7.1-rc.1 3.7.0-beta", ""},
		{"4.0.0", "3.9.9 2.0.0 10.0.0", "3.9.9"},
		{"4.0.0-beta", "3.9.9", ""},
		{"1.0", "0.9 0.10", "0.10"},
		{"r128", "r127", "r127"},
		{"none", "1.0.0", ""},
		{"1.0.0", "", ""},
	} {
		if got := Predecessors(tt.version, strings.Fields(tt.others)); !slices.Equal(got, strings.Fields(tt.want)) {
			t.Errorf("Predecessors(%s, %s) = %v, want %s", tt.version, tt.others, got, tt.want)
		}
	}
}
