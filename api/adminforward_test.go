package api

import (
	"errors"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
)

// roundTripper is a transport of one function.
type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// gatedReader counts reads, which wait until the gate opens.
type gatedReader struct {
	started, gate chan struct{}
	reads, under  atomic.Int32
}

func (g *gatedReader) Read(p []byte) (int, error) {
	g.under.Add(1)
	if g.reads.Add(1) == 1 {
		close(g.started)
	}
	defer g.under.Add(-1)
	<-g.gate
	return len(p), nil
}

// An HTTP client may go on reading the body of a request after it has returned the response. When ForwardOperation has returned, the
// contents are the caller's alone.
func TestForwardLeavesContents(t *testing.T) {
	contents := &gatedReader{started: make(chan struct{}), gate: make(chan struct{})}
	returned := make(chan struct{})
	late := make(chan error, 1)
	transport := func(r *http.Request) (*http.Response, error) {
		go func() {
			io.ReadFull(r.Body, make([]byte, len("{}\n"))) //nolint:errcheck // what comes before the contents
			r.Body.Read(make([]byte, 1))                   //nolint:errcheck // it is under way when the response is there
			<-returned
			_, err := r.Body.Read(make([]byte, 1))
			late <- err
		}()
		<-contents.started
		go close(contents.gate)
		return nil, errors.New("no response")
	}
	c := NewAdminClient(&http.Client{Transport: roundTripper(transport)}, "http://node/")
	_, err := ForwardOperation(t.Context(), c, "import", OperationRequest{JSON: []byte("{}"), Contents: contents}, nil)
	if contents.under.Load() != 0 || err == nil || !strings.Contains(err.Error(), "no response") {
		t.Errorf("%d reads are under way when ForwardOperation returns %v", contents.under.Load(), err)
	}
	before := contents.reads.Load()
	close(returned)
	if err := <-late; err == nil || contents.reads.Load() != before {
		t.Errorf("the contents are read after ForwardOperation has returned: %v", err)
	}
}

// A request that a node forwards has as many bytes as it had before.
func TestForwardKeepsSize(t *testing.T) {
	sent := ""
	c := NewAdminClient(&http.Client{Transport: roundTripper(func(r *http.Request) (*http.Response, error) {
		body, err := io.ReadAll(r.Body)
		sent = string(body)
		return nil, errors.Join(err, errors.New("no response"))
	})}, "http://node/")
	const names = `{"files":["<a>&.js"]}`
	forward := func(contents io.Reader) {
		r := OperationRequest{JSON: []byte(names), Contents: contents}
		ForwardOperation(t.Context(), c, "import", r, nil) //nolint:errcheck // there is no response
	}
	forward(http.NoBody)
	if sent != names {
		t.Errorf("forwarded as %s", sent)
	}
	forward(strings.NewReader("<"))
	if sent != names+"\n<" {
		t.Errorf("forwarded with contents as %s", sent)
	}
}
