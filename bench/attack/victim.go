package main

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"sync"
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
	dialer := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(victim)}}
	for i := range v.workers {
		protocols := new(http.Protocols)
		protocols.SetHTTP1(!t.h2)
		protocols.SetHTTP2(t.h2)
		v.workers[i] = &http.Transport{DialContext: dialer.DialContext, Protocols: protocols, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}} //nolint:gosec // its own certificate
	}
	return v
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
