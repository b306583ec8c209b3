package notify

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"net/url"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"github.com/larder-cdn/larder/internal/text"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/kvstore/durable"
	"github.com/larder-cdn/larder/logs"
)

// PurgeOptions configures the requests to the purge hook. The zero value is for none.
type PurgeOptions struct {
	Hook PurgeHook
	// URLs returns the URLs under which a release was served, given the paths of its files, and the cache tag that all of their responses had
	// and no others. A hook that needs no host may get any.
	URLs func(name, version string, files []string) (urls []string, tag string)
}

// purgeHookID is the id under which the registry has the purge hook beside the webhooks.
const purgeHookID = "purge"

// A Withdrawal is a withdrawn release, as the log records it.
type Withdrawal struct {
	Entry    int64        `json:"entry"` // of the log
	Package  string       `json:"package"`
	Version  string       `json:"version"`
	Reason   string       `json:"reason"`
	Time     time.Time    `json:"time"`
	Manifest kvstore.Hash `json:"manifest"`
}

// id returns the id under which the purge of the release is scheduled: package@version. A later withdrawal of the release has the
// same.
func (w *Withdrawal) id() string { return w.Package + "@" + w.Version }

// newWithdrawal returns the withdrawal that e, an entry of the log about a withdrawn release, records.
func newWithdrawal(e logs.Indexed) Withdrawal {
	return Withdrawal{Entry: e.Index, Package: e.Package, Version: e.Version, Reason: e.Reason, Time: e.Time, Manifest: e.Manifest}
}

// A Purge is a withdrawal that was not sent to the purge hook yet.
type Purge struct {
	Withdrawal
	Done     int       `json:"done,omitempty"`     // URLs that the cache has purged
	Attempts int       `json:"attempts,omitempty"` // that failed
	Problem  string    `json:"problem,omitempty"`  // of the last one
	Next     time.Time `json:"next,omitzero"`      // of the next one
}

// purgeBody is the body of the scheduled request of a purge. A request with another body replaces it, so a corrected hook is
// requested at once, and a release that is withdrawn again is purged once.
type purgeBody struct {
	Withdrawal
	Hook string `json:"hook"` // id of the hook
}

// ReadPurges returns the purges of a store that were not delivered to the purge hook yet, the oldest withdrawal first. A
// malformed row is an error.
func ReadPurges(r kvstore.Reader) ([]Purge, error) {
	pending := []Purge{}
	var body purgeBody
	for item, err := range r.Scan(kvstore.Durable, kvstore.Range{Prefix: durable.RowPrefixes(purgeClass)[0]}) {
		if err != nil {
			return nil, fmt.Errorf("notify: couldn't read the pending purges: %w", err)
		}
		var state State
		switch {
		case bytes.HasSuffix(item.Key, []byte("\x00"+bodyKey)): // it precedes the state
			body = purgeBody{}
			err = json.Unmarshal(item.Value, &body)
		case bytes.HasSuffix(item.Key, []byte("\x00"+stateKey)):
			if err = json.Unmarshal(item.Value, &state); state.Status == Waiting {
				pending = append(pending, Purge{body.Withdrawal, state.Done, state.Attempts, state.Problem, state.Next})
			}
		}
		if err != nil {
			return nil, fmt.Errorf("notify: the row %q of a pending purge is malformed: %w", item.Key, err)
		}
	}
	slices.SortFunc(pending, func(a, b Purge) int { return cmp.Compare(a.Entry, b.Entry) })
	return pending, nil
}

// HasPurgeHook reports whether the store has a purge hook, because a process has used one and it was not removed since. Then the
// next process with a purge hook also purges what is withdrawn before it starts.
func HasPurgeHook(r kvstore.Reader) (bool, error) {
	_, err := r.Get(kvstore.Durable, append(durable.RowPrefixes(registryClass)[0], registryName+"\x00"+hookPrefix+purgeHookID...))
	if errors.Is(err, kvstore.ErrNotFound) {
		return false, nil
	}
	return err == nil, err
}

// PurgesCollector returns the Prometheus gauge larder_purges_pending: how many purges of a store are not delivered yet; NaN if
// they cannot be read. It scans them at each collection.
func PurgesCollector(store *kvstore.Store) prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "larder_purges_pending",
		Help: "Withdrawals not yet sent to the purge hook.",
	}, func() float64 {
		pending, err := ReadPurges(store)
		if err != nil {
			return math.NaN()
		}
		return float64(len(pending))
	})
}

// AddPurgeHook has the purge hook of the options receive the withdrawals from now on. It also schedules again those that an
// earlier hook has not received. If the store has no purge hook yet, it schedules those that Larder 0.1.0 has left, whose rows it
// deletes. A process that ends in the middle of it loses none: the next one starts with the same rows.
func (w *Webhooks) AddPurgeHook(ctx context.Context) error {
	pending, err := ReadPurges(w.options.Store)
	if err != nil {
		return err
	}
	for _, p := range pending {
		if err := w.schedulePurge(ctx, p.Withdrawal); err != nil {
			return err
		}
	}
	if _, err = w.send(ctx, getHook(purgeHookID)); errors.Is(err, ErrNoWebhook) {
		var from int64
		if from, err = w.takeOverPurges(ctx); err == nil {
			_, err = w.send(ctx, addHook(hook{Webhook: Webhook{ID: purgeHookID, From: from, Added: w.options.Runtime.Now().UTC()}}))
			w.wakeRun()
		}
	}
	if err != nil {
		return err
	}
	b := w.options.Store.NewBatch() // these withdrawals are scheduled, and the hook has a cursor
	defer b.Close()
	for _, prefix := range [][]byte{purgeCursor010, purges010} {
		for item, err := range w.options.Store.Scan(kvstore.Queue, kvstore.Range{Prefix: prefix}) {
			if err != nil {
				return err
			}
			b.Delete(kvstore.Queue, bytes.Clone(item.Key))
		}
	}
	return b.Commit()
}

// removePurgeHook removes the purge hook and its pending purges from the store. It returns an error if the settings still have a
// purge hook, and ErrNoWebhook if the store has none.
func (w *Webhooks) removePurgeHook(ctx context.Context) error {
	if w.options.Purge.Hook != (PurgeHook{}) {
		return errors.New("the purge hook is in the settings: remove --purge-hook there and restart before you remove its pending purges")
	}
	if _, err := w.send(ctx, removeHook(purgeHookID)); err != nil {
		return err
	}
	pending, err := ReadPurges(w.options.Store)
	for _, p := range pending { // a purge that a killed process leaves here is given up at its next attempt
		if err := w.purges.Remove(ctx, p.id()); err != nil && !errors.Is(err, ErrNoRequest) {
			return err
		}
	}
	return err
}

// The rows in which Larder 0.1.0 has purges, in [kvstore.Queue]: the first entry of the log that it has not read, and the
// withdrawals.
var purgeCursor010, purges010 = []byte("P"), []byte("p")

// takeOverPurges schedules the purges that Larder 0.1.0 has left in the store, and those of withdrawals in the log that it had
// not read. It returns the index of the first entry of the log that this does not cover, which is the log's size. Without such
// rows it schedules nothing.
func (w *Webhooks) takeOverPurges(ctx context.Context) (from int64, err error) {
	size, store := w.options.Log.Checkpoint().Size, w.options.Store
	from = size
	if row, err := store.Get(kvstore.Queue, purgeCursor010); err == nil && len(row) == 8 {
		from = int64(binary.BigEndian.Uint64(row))
	} else if err != nil && !errors.Is(err, kvstore.ErrNotFound) {
		return 0, err
	}
	for item, err := range store.Scan(kvstore.Queue, kvstore.Range{Prefix: purges010}) {
		var withdrawn Withdrawal
		if err == nil {
			err = json.Unmarshal(item.Value, &withdrawn)
		}
		if err == nil {
			err = w.schedulePurge(ctx, withdrawn)
		}
		if err != nil {
			return 0, err
		}
	}
	for e, err := range logs.Entries(store, from) {
		if err != nil {
			return 0, err
		}
		if e.Kind == logs.Withdrawn {
			if err := w.schedulePurge(ctx, newWithdrawal(e)); err != nil {
				return 0, err
			}
		}
		size = e.Index + 1
	}
	return size, nil
}

// schedulePurge schedules the request to the purge hook about a withdrawn release, in place of one about an earlier withdrawal of
// it. It does nothing if the same one for the same hook is scheduled, or was delivered within a day.
func (w *Webhooks) schedulePurge(ctx context.Context, withdrawn Withdrawal) error {
	hook := w.options.Purge.Hook
	body, err := json.Marshal(purgeBody{withdrawn, hook.id()})
	if err != nil {
		return err
	}
	request := Request{Method: http.MethodPost, Body: string(body), URL: "http://no-purge-hook.invalid"}
	if to, err := hook.expand("http://larder.invalid"); err == nil {
		request.URL = "http://" + to.Host // for log messages, without what may be secret
	}
	_, err = w.purges.PostOnce(ctx, withdrawn.id(), request)
	return err
}

// maxPurgeRequests is how many requests for single URLs are sent at once, and purgeStep after how many successful ones of a
// release progress is recorded.
const (
	maxPurgeRequests = 4
	purgeStep        = 64
)

// sendPurge makes an attempt to send the withdrawal in s.Request to the purge hook. It requests the hook once and returns the
// status of the response, with an error unless it is 2xx; or it requests the hook for each URL of the release and returns 200, or
// 0 with an error. In the latter case it adds each complete step of purgeStep URLs to s.Done, so that the next attempt continues
// there. The error wraps [ErrGone] only if the settings have no hook and it was also removed from the store, and not if just the
// settings lack it.
func (w *Webhooks) sendPurge(ctx context.Context, s *State) (status int, err error) {
	var p purgeBody
	if err := json.Unmarshal([]byte(s.Request.Body), &p); err != nil {
		return 0, err
	}
	hook := w.options.Purge.Hook
	if hook == (PurgeHook{}) {
		if _, err := w.send(ctx, getHook(purgeHookID)); errors.Is(err, ErrNoWebhook) {
			return 0, fmt.Errorf("%w: the purge hook was removed", ErrGone)
		}
		return 0, errors.New("no purge hook is configured any more: set --purge-hook, or run `larder webhook remove purge`")
	}
	m, err := logs.ReadManifest(w.options.Store, p.Manifest)
	if err != nil {
		return 0, err
	}
	files := text.Each(m.Files, func(f logs.File) string { return f.Path })
	urls, tag := w.options.Purge.URLs(p.Package, p.Version, files)
	if !hook.PerURL() {
		return w.sendPurgeNotice(ctx, purgeNotice{
			Event: string(logs.Withdrawn), Package: p.Package, Version: p.Version, Reason: p.Reason,
			Entry: p.Entry, Time: p.Time, URLs: urls, Tags: []string{tag},
		})
	}
	for s.Done < len(urls) {
		step := urls[s.Done:min(len(urls), s.Done+purgeStep)]
		g, ctx := errgroup.WithContext(ctx)
		for _, target := range step {
			g.Go(func() error { return w.purgeURL(ctx, target) })
		}
		if err := g.Wait(); err != nil {
			return 0, err
		}
		s.Done += len(step)
	}
	return http.StatusOK, nil
}

// A purgeNotice is the body of a request to a hook that is requested once for each withdrawal.
type purgeNotice struct {
	Event   string    `json:"event"` // "withdrawn"
	Package string    `json:"package"`
	Version string    `json:"version"`
	Reason  string    `json:"reason"`
	Entry   int64     `json:"entry"` // of the log
	Time    time.Time `json:"time"`
	URLs    []string  `json:"urls"`
	Tags    []string  `json:"tags"` // of the responses of all URLs, and of no others
}

// sendPurgeNotice sends a notice about a withdrawal to the purge hook, one that is requested once for each withdrawal. It returns
// the status of the response, 0 for none; a status other than 2xx is an error, too.
func (w *Webhooks) sendPurgeNotice(ctx context.Context, n purgeNotice) (status int, err error) {
	body, err := json.Marshal(n)
	if err != nil {
		return 0, err
	}
	to, err := w.options.Purge.Hook.expand("")
	if err != nil {
		return 0, err
	}
	status, err = w.requestPurge(ctx, to, body)
	return status, cmp.Or(err, statusError(to.Host, status))
}

// purgeURL has the cache purge the URL target. It waits while maxPurgeRequests of these requests are sent. The statuses 404 and
// 410 count as success, because the cache has no copy then; another one besides 2xx is an error.
func (w *Webhooks) purgeURL(ctx context.Context, target string) error {
	select {
	case w.purging <- struct{}{}:
		defer func() { <-w.purging }()
	case <-ctx.Done():
		return ctx.Err()
	}
	to, err := w.options.Purge.Hook.expand(target)
	if err != nil {
		return err
	}
	status, err := w.requestPurge(ctx, to, nil)
	if status == http.StatusNotFound || status == http.StatusGone {
		return nil // the cache has no copy
	}
	return cmp.Or(err, statusError(to.Host, status))
}

// requestPurge sends one request to the purge hook at the URL to, with the hook's method, and returns the status of the response,
// whatever it is. body is JSON; nil for none.
func (w *Webhooks) requestPurge(ctx context.Context, to *url.URL, body []byte) (status int, err error) {
	r, err := http.NewRequestWithContext(ctx, w.options.Purge.Hook.method, to.String(), bytes.NewReader(body))
	if err != nil {
		return 0, fmt.Errorf("couldn't make a request to %s", to.Host)
	}
	if body != nil {
		r.Header.Set("Content-Type", "application/json")
	}
	return w.purges.do(r)
}
