package sources

import (
	"fmt"
	"reflect"
	"testing"
)

// TestManyDeprecations tests that the same reasons are stored each time if there are too many.
func TestManyDeprecations(t *testing.T) {
	versions := map[string]Candidate{}
	for i := range 2 * maxDeprecations {
		versions[fmt.Sprintf("1.0.%d", i)] = Candidate{Deprecated: fmt.Sprint("reason ", i)}
	}
	first := GroupDeprecations(versions)
	if len(first) != maxDeprecations || !reflect.DeepEqual(first, GroupDeprecations(versions)) {
		t.Errorf("%d reasons, which differ from those of another call", len(first))
	}
}
