package verify

import (
	"strings"
	"testing"
)

// Whoever names the wrong file of the key folder does not find its key in the
// message, and from there in a terminal's history or a log.
func TestPrivateKeysAreNotRepeated(t *testing.T) {
	const private = "PRIVATE+KEY+cdn.example.com/log+1a2b3c4d+AXNlY3JldHNlY3JldHNlY3JldHNlY3JldHNlY3I="
	_, witness := parseWitnessKey(private)
	for name, err := range map[string]error{"key": CheckKey(private), "witness": witness} {
		if err == nil || strings.Contains(err.Error(), "AXNl") || !strings.Contains(err.Error(), "log.pub") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
