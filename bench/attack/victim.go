package main

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// workers is how many requests the victim has under way at most.
	workers = 4
	// pause is between the requests of one worker.
	pause = 10 * time.Millisecond
	// perConnection is after how many requests a worker connects anew.
	perConnection = 5
	// patience is how long a request may take.
	patience = 5 * time.Second
)

// A client of a site, which is not the attacker.
type client struct {
	t       *target
	workers [workers]*http.Transport
}

func newVictim(t *target) *client {
	v := &client{t: t}
	for i := range v.workers {
		v.workers[i] = newTransport(t)
	}
	return v
}

// newTransport returns what connects from the victim's address.
func newTransport(t *target) *http.Transport {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(!t.h2)
	protocols.SetHTTP2(t.h2)
	dialer := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(victim)}}
	return &http.Transport{DialContext: dialer.DialContext, Protocols: protocols, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}} //nolint:gosec // its own certificate
}

const (
	// keptCount is how many connections others behind the victim's address keep, and keptPause how long each is idle between requests.
	keptCount = 200
	keptPause = 2 * time.Second
)

// keptConnections are connections from the victim's address that are used from time to time.
type keptConnections struct {
	t    *target
	stop context.CancelFunc
	done sync.WaitGroup
	cut  atomic.Int64
}

// open opens the connections, and returns when each has had a response.
func (k *keptConnections) open(ctx context.Context) {
	ctx, k.stop = context.WithCancel(ctx)
	var opened sync.WaitGroup
	for i := range keptCount {
		opened.Add(1)
		k.done.Go(func() {
			transport := newTransport(k.t)
			defer transport.CloseIdleConnections()
			v, first := &client{t: k.t}, sync.OnceFunc(opened.Done)
			traced := httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(c httptrace.GotConnInfo) {
				if !c.Reused {
					k.cut.Add(1) // the first time, too; see countCut
				}
			}})
			for n := 0; ctx.Err() == nil; n++ {
				_ = v.get(traced, transport, fmt.Sprintf("%sf%d.js", libs, 1+(n*keptCount+i)%smallFiles))
				first()
				select {
				case <-ctx.Done():
				case <-time.After(keptPause):
				}
			}
		})
	}
	opened.Wait()
	k.cut.Add(-keptCount)
}

// countCut returns how many connections had to be opened again since the last call.
func (k *keptConnections) countCut() int64 { return k.cut.Swap(0) }

// close closes the connections.
func (k *keptConnections) close() {
	k.stop()
	k.done.Wait()
}

func (v *client) close() {
	for _, w := range v.workers {
		w.CloseIdleConnections()
	}
}

// A result is what a victim got.
type result struct {
	took   []time.Duration // of those that succeeded, sorted
	errors []error
}

func (r *result) asked() int { return len(r.took) + len(r.errors) }

func (r *result) success() float64 { return float64(len(r.took)) / float64(max(1, r.asked())) }

func (r *result) quantile(q float64) time.Duration {
	if len(r.took) == 0 {
		return 0
	}
	return r.took[int(q*float64(len(r.took)-1))]
}

// ask asks for small files for that long.
func (v *client) ask(ctx context.Context, d time.Duration) (r result) {
	end := time.Now().Add(d)
	var mu sync.Mutex
	var all sync.WaitGroup
	for i, w := range v.workers {
		all.Go(func() {
			for n := 0; time.Now().Before(end) && ctx.Err() == nil; n++ {
				if n%perConnection == 0 {
					w.CloseIdleConnections()
				}
				begun := time.Now()
				err := v.get(ctx, w, fmt.Sprintf("%sf%d.js", libs, 1+(n*workers+i)%smallFiles))
				took := time.Since(begun)
				mu.Lock()
				if err == nil {
					r.took = append(r.took, took)
				} else {
					r.errors = append(r.errors, err)
				}
				mu.Unlock()
				time.Sleep(pause)
			}
		})
	}
	all.Wait()
	slices.Sort(r.took)
	return r
}

// get asks once, and reads all of the answer.
func (v *client) get(ctx context.Context, w http.RoundTripper, path string) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, v.t.url()+path, nil)
	if err != nil {
		return err
	}
	answer, err := w.RoundTrip(r)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if _, err = io.Copy(io.Discard, answer.Body); err == nil && answer.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", path, answer.Status)
	}
	return err
}

// gets is for what is asked for once, beside the files.
func gets(path string) func(context.Context, *client) error {
	return func(ctx context.Context, v *client) error {
		if err := v.get(ctx, v.workers[0], path); err != nil {
			return fmt.Errorf("the victim's %w", err)
		}
		return nil
	}
}

// streams has the victim get one stream of the log.
func streams(ctx context.Context, v *client) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, v.t.url()+streamPath, nil)
	if err != nil {
		return err
	}
	answer, err := v.workers[0].RoundTrip(r)
	if err != nil {
		return fmt.Errorf("the victim's stream: %w", err)
	}
	answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("the victim's stream: %s", answer.Status)
	}
	return nil
}
