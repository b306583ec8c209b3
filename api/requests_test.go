package api

import (
	"flag"
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"
)

var rewrite = flag.Bool("rewrite", false, "write the responses to the test data, to be compared with the contract by hand")

// TestRequests sends the requests of testdata/requests.txt and compares status, headers and body exactly. Each request is a line with method
// and address; a line with status, type, caching and, for a redirect, location; and the body, empty for none or where a table elsewhere has it.
func TestRequests(t *testing.T) {
	const file = "testdata/requests.txt"
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	s := newService(t)
	var out strings.Builder
	n := 0
	for block := range strings.SplitSeq(strings.TrimSpace(string(data)), "\n\n") {
		line, want, _ := strings.Cut(block, "\n")
		method, address, ok := strings.Cut(line, " ")
		host, path, hasPath := strings.Cut(strings.TrimPrefix(address, "https://"), "/")
		if !ok || !hasPath {
			t.Fatalf("not a request: %q", line)
		}
		n++
		got := s.ask(method, "/"+path, "Host: "+host)
		head := fmt.Sprintf("%d %s | %s", got.status, got.get("Content-Type"), got.get("Cache-Control"))
		if to := got.get("Location"); to != "" {
			head += " | " + to
		}
		found := strings.TrimSuffix(head+"\n"+got.body, "\n")
		fmt.Fprintf(&out, "%s\n%s\n\n", line, found)
		if !*rewrite && found != strings.TrimSuffix(want, "\n") {
			t.Errorf("%s\n got %s\nwant %s", line, found, want)
		}
		if got.get("Access-Control-Allow-Origin") != "*" {
			t.Errorf("%s: Access-Control-Allow-Origin is %q", line, got.get("Access-Control-Allow-Origin"))
		}
		if expires := got.get("Expires"); got.status == http.StatusOK && (expires == "0") != strings.HasPrefix(got.get("Cache-Control"), "no-cache") {
			t.Errorf("%s: Expires is %q", line, expires)
		}
	}
	if n < 150 {
		t.Errorf("%d requests, want 150", n)
	}
	if *rewrite {
		if err := os.WriteFile(file, []byte(strings.TrimSuffix(out.String(), "\n")), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}
