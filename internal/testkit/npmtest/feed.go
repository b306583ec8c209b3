package npmtest

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// changesPath is where the change feed is, in the form of CouchDB's: since, limit, feed=longpoll, timeout.
const changesPath = "/_changes"

// Change tells the change feed that packages have changed, whether they are there or not.
func (r *Registry) Change(names ...string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, name := range names {
		r.change(name)
	}
}

// change is called with mu held.
func (r *Registry) change(name string) {
	if r.quiet {
		return
	}
	r.changes = append(r.changes, name)
	close(r.changed)
	r.changed = make(chan struct{})
}

// awaitChange holds a request of the feed back until there is something to answer.
func (r *Registry) awaitChange(request *http.Request) {
	query := request.URL.Query()
	if request.URL.Path != changesPath || query.Get("feed") != "longpoll" {
		return
	}
	milliseconds, _ := strconv.Atoi(query.Get("timeout"))
	timeout := time.After(time.Duration(milliseconds) * time.Millisecond)
	for {
		r.mu.Lock()
		since, changed := r.since(request), r.changed
		more, faulty := len(r.changes) > since, len(r.faults) > 0
		r.mu.Unlock()
		if more || faulty {
			return
		}
		select {
		case <-changed:
		case <-timeout:
			return
		case <-request.Context().Done():
			return
		case <-r.done:
			return
		}
	}
}

// since is the place in the feed that a request names. Sequences are a number and what only the server understands, as
// CouchDB's are.
func (r *Registry) since(request *http.Request) int {
	sequence := request.URL.Query().Get("since")
	if sequence == "now" {
		return len(r.changes)
	}
	number, _, _ := strings.Cut(sequence, "-")
	n, _ := strconv.Atoi(number)
	return min(n, len(r.changes))
}

// feed is an answer of the change feed. It is called with mu held.
func (r *Registry) feed(request *http.Request) []byte {
	type change struct {
		Seq     string              `json:"seq"`
		ID      string              `json:"id"`
		Changes []map[string]string `json:"changes"`
	}
	sequence := func(n int) string { return fmt.Sprintf("%d-g1AAAACTeJzLYWBgYMpgTmHgz8tPSTV0", n) }
	since := r.since(request)
	end := len(r.changes)
	if limit, err := strconv.Atoi(request.URL.Query().Get("limit")); err == nil {
		end = min(end, since+limit)
	}
	results := []change{}
	for i := since; i < end; i++ {
		results = append(results, change{Seq: sequence(i + 1), ID: r.changes[i], Changes: []map[string]string{{"rev": fmt.Sprintf("%d-abc", i+1)}}})
	}
	body, err := json.Marshal(map[string]any{"results": results, "last_seq": sequence(end), "pending": len(r.changes) - end})
	if err != nil {
		panic(err)
	}
	return body
}

// Quietly has the change feed hear nothing of what do publishes.
func (r *Registry) Quietly(do func()) {
	r.setQuiet(true)
	defer r.setQuiet(false)
	do()
}

func (r *Registry) setQuiet(quiet bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.quiet = quiet
}
