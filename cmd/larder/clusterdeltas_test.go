package main

import (
	"crypto/sha256"
	"encoding/base64"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/larder-cdn/larder/internal/testkit"
	"github.com/larder-cdn/larder/internal/testkit/npmtest"
)

// TestClusterDeltas tests that a leader makes the deltas of releases that the leader before it has published without making them, also if it could not
// read at first which these are.
func TestClusterDeltas(t *testing.T) {
	if testing.Short() {
		t.Skip("starts processes")
	}
	t.Parallel()
	c := newCrew(t)
	registry := registryEnviron(t, npmtest.New(t))
	c.env = append(registry, "LARDER_DICTIONARIES=false") // so that it makes none, as one that is killed first
	one := c.machine("one", nil)
	one.kind = "up"
	one.start()
	one.writes()
	old := testkit.VersionedScript("1.0.1")
	c.write("source/demo.js", old)
	first := one.publish()
	c.write("source/demo.js", testkit.VersionedScript("1.0.2"))
	version := one.publish()
	c.env = registry
	two := c.machine("two", one, candidateFiles...)
	two.kind = "up"
	two.start()
	c.answers(first, http.StatusOK, two)
	c.write("bucket/deltas", "unreadable")
	one.end(os.Interrupt)
	two.writes()
	c.eventually("the next leader says that it couldn't queue deltas", func() bool { return strings.Contains(two.said(), "couldn't queue deltas") })
	record := filepath.Join(c.bucket, "deltas")
	if err := os.Remove(record); err != nil {
		t.Fatal(err)
	}
	c.eventually("the next leader has made all deltas", func() bool {
		_, err := os.Stat(record)
		return err == nil
	})
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, two.url+"/ajax/libs/demo/"+version+"/demo.js", nil)
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256([]byte(old))
	r.Header.Set("Accept-Encoding", "gzip, br, dcz")
	r.Header.Set("Available-Dictionary", ":"+base64.StdEncoding.EncodeToString(sum[:])+":")
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if got := response.Header.Get("Content-Encoding"); got != "dcz" {
		t.Errorf("%s: Content-Encoding %q, want dcz", response.Status, got)
	}
}
