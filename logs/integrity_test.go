package logs_test

import (
	"testing"

	"github.com/larder-cdn/larder/logs"
)

func TestMatchHashes(t *testing.T) {
	for _, tt := range []struct{ hash, own string }{
		{"sha256-ungWv48Bz+pBQUDeXa4iI7ADYaOWF3qctBD/YfIAFa0=", "sha256-ungWv48Bz+pBQUDeXa4iI7ADYaOWF3qctBD/YfIAFa0="},
		{"sha1-qZk+NkcGgWq6PiVxeFDCbJzQ2J0=", "sha1-3a81oZNherrMQXNJriBBMRLm+k6JqX6iCp7u5ktV05ohkpkqJ0/BqDa6PCOj/uu9RU1EI2Q86A4qmslPpUyknw=="},
	} {
		own, matches := logs.MatchHashes([]string{tt.hash}, []byte("abc"))
		if own != tt.own || matches != (tt.hash == tt.own) {
			t.Errorf("%s: got %s, %v", tt.hash, own, matches)
		}
	}
}
