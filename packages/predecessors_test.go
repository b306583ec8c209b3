package packages

import (
	"fmt"
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

func TestSuccessors(t *testing.T) {
	var many []string
	for i := range 200 {
		many = append(many, fmt.Sprintf("1.%d.0", i))
	}
	slices.Reverse(many)
	for _, tt := range []struct{ version, others, want string }{
		{"3.7.0", "3.7.1 3.7.2 3.8.0 3.8.1 4.0.0 3.6.0 4.0.0-beta", "3.7.1"},
		{"3.7.2", "3.7.0 3.8.1 3.8.0 4.0.0", "3.8.0 3.8.1"},
		{"3.9.0", "5.0.0 4.0.0 4.0.1", "4.0.0 4.0.1"},
		{"1.0.0-rc.1", "1.0.0", ""},
		{"none", "1.0.0", ""},
		{"1.0.5", strings.Join(many, " "), "1.1.0"},
	} {
		if got := Successors(tt.version, strings.Fields(tt.others)); !slices.Equal(got, strings.Fields(tt.want)) {
			t.Errorf("Successors(%s, %s) = %v, want %s", tt.version, tt.others, got, tt.want)
		}
	}
}
