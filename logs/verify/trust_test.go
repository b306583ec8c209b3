package verify

import (
	"strings"
	"testing"
)

// Whoever names the wrong file of the key folder does not find its key in the
// message, and from there in a terminal's history or a log.
func TestPrivateKeysAreNotRepeated(t *testing.T) {
	const private = "PRIVATE+KEY+cdn.example.com/log+1a2b3c4d+AXNlY3JldHNlY3JldHNlY3JldHNlY3JldHNlY3I="
	for name, check := range map[string]func(string) error{"key": CheckKey, "witness": checkWitness} {
		err := check(private)
		if err == nil || strings.Contains(err.Error(), "AXNl") || !strings.Contains(err.Error(), "log.pub") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
