package app

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/larder-cdn/larder/api"
	"github.com/larder-cdn/larder/bot/notify"
	"github.com/larder-cdn/larder/bot/sources"
	"github.com/larder-cdn/larder/internal/retry"
	"github.com/larder-cdn/larder/kvstore"
)

// The outbox of a cluster has what the leader has to send and the log does not contain: scheduled requests, webhooks and their
// messages, and withdrawals that caches have yet to purge. The leader saves its rows in the bucket, encrypted, and the next leader
// loads them. Followers have no outbox. The saved rows start with npm's download counts, which would take a month to collect again.

// outboxKey is the row that marks the outbox of this store as the cluster's.
var outboxKey = kvstore.Key("cluster", "errands")

// outboxInterval is the time between two saves of the outbox, and countsInterval the age at which download counts are read again
// for that. A change that a client requested is also saved before the response.
const (
	outboxInterval = 5 * time.Second
	countsInterval = time.Hour // the counts are large, and some change every minute
)

// outboxSaved describes the outbox that was last saved in the bucket. The lock is held while one is saved.
type outboxSaved struct {
	sync.Mutex
	sum    kvstore.Hash
	counts []notify.Row // download counts, as of readAt
	readAt time.Time
}

// readDownloadCounts returns the rows of the store with npm's download counts of packages, in the form of a saved outbox.
func readDownloadCounts(store *kvstore.Store) (rows []notify.Row, err error) {
	for item, err := range store.Scan(kvstore.Upstreams, kvstore.Range{}) {
		if err != nil {
			return nil, err
		}
		if sources.IsPopularityKey(item.Key) {
			rows = append(rows, notify.NewRow(kvstore.Upstreams, item.Key, item.Value))
		}
	}
	return rows, nil
}

// deleteOutbox deletes the outbox (schedules, webhooks and unsent messages) from the store of a follower, and the mark that it
// is the cluster's. Without the mark it does nothing: a node that has just joined keeps its own outbox, for the time when it
// leads.
func deleteOutbox(store *kvstore.Store) error {
	for _, err := range store.Scan(kvstore.Meta, kvstore.Range{Prefix: outboxKey}) {
		if err != nil {
			return err
		}
		return notify.Replace(store, nil, func(b *kvstore.Batch) { b.Delete(kvstore.Meta, outboxKey) })
	}
	return nil
}

// loadOutbox replaces the outbox (schedules, webhooks and unsent messages) in the store by the one that the previous leader
// saved in the bucket, adds the saved download counts, and marks the outbox as the cluster's. If the bucket has none, because
// no node has led before, the node keeps its own, marks it, and saves it in the bucket.
func (l *clusterLeader) loadOutbox(ctx context.Context) error {
	data, err := l.node.cluster.LoadSharedState(ctx, l.node.key)
	if err != nil {
		return err
	}
	mark := func(b *kvstore.Batch) { b.Set(kvstore.Meta, outboxKey, nil) }
	if data == nil { // the first one ever: it keeps its own
		b := l.node.folder.store.NewBatch()
		defer b.Close()
		mark(b)
		if err := b.Commit(); err != nil {
			return err
		}
		return l.saveOutbox(ctx)
	}
	l.saved.Lock()
	defer l.saved.Unlock()
	l.saved.sum = kvstore.Sum(data)
	if err := notify.Replace(l.node.folder.store, data, mark); err != nil {
		return fmt.Errorf("couldn't take over webhooks and schedules of the previous leader from %s: %w", l.node.bucket, err)
	}
	return nil
}

// saveOutbox saves the outbox (schedules, webhooks and unsent messages) encrypted in the bucket if it has changed since it was
// saved last. The download counts in it may be an hour old.
func (l *clusterLeader) saveOutbox(ctx context.Context) error {
	l.saved.Lock()
	defer l.saved.Unlock()
	if now := time.Now(); l.saved.readAt.IsZero() || now.Sub(l.saved.readAt) >= countsInterval {
		counts, err := readDownloadCounts(l.node.folder.store)
		if err != nil {
			return err
		}
		l.saved.counts, l.saved.readAt = counts, now
	}
	data, err := notify.Snapshot(l.node.folder.store, l.saved.counts)
	if err != nil {
		return err
	}
	sum := kvstore.Sum(data)
	if sum == l.saved.sum {
		return nil
	}
	if err := l.node.cluster.SaveSharedState(ctx, l.node.key, data); err != nil {
		return err
	}
	l.saved.sum = sum
	return nil
}

// saveOutboxRegularly saves the outbox (schedules, webhooks and unsent messages) in the bucket at intervals until ctx ends. It
// logs errors, and tries again.
func (l *clusterLeader) saveOutboxRegularly(ctx context.Context) {
	for retry.Sleep(ctx, outboxInterval) == nil {
		if err := l.saveOutbox(ctx); err != nil && ctx.Err() == nil {
			l.run.logger.Warn("couldn't save webhooks and schedules for the next leader; trying again", "err", err)
		}
	}
}

// explainNotShared adds to err, an error of saving the outbox (schedules and webhooks) in the bucket, that so far only this
// node has the change. It returns nil for nil.
func explainNotShared(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("the change is made on this node, and is lost if another node takes over before it is saved in the bucket; saving is tried again: %w", err)
}

// saveBeforeReturn replaces the operations in all that add or remove schedules and webhooks by ones that return only once the
// outbox is saved in the bucket, see [clusterLeader.thenSaveOutbox]. It changes all, and returns it.
func (l *clusterLeader) saveBeforeReturn(all operations) operations {
	for _, name := range []string{string(OpScheduleAdd), string(OpScheduleRemove), string(OpWebhookAdd), string(OpWebhookRemove)} {
		all[name] = l.thenSaveOutbox(all[name])
	}
	return all
}

// thenSaveOutbox returns an operation that runs do and, if that succeeds, saves the outbox in the bucket before it returns. If
// saving fails, the operation fails, although its change is made on this node.
func (l *clusterLeader) thenSaveOutbox(do api.Operation) api.Operation {
	return func(ctx context.Context, request api.OperationRequest, report func(any)) (any, error) {
		result, err := do(ctx, request, report)
		if err == nil {
			err = explainNotShared(l.saveOutbox(ctx))
		}
		return result, err
	}
}

// saveBeforeResponse returns a handler that sends the response to a change of the schedule only once the outbox is saved in the
// bucket. If saving fails, it responds 503, although the change is made on this node. GET and HEAD go straight to next.
func (l *clusterLeader) saveBeforeResponse(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet || r.Method == http.MethodHead {
			next.ServeHTTP(w, r)
			return
		}
		buffered := &bufferedResponse{ResponseWriter: w, status: http.StatusOK}
		next.ServeHTTP(buffered, r)
		if err := explainNotShared(l.saveOutbox(r.Context())); err != nil {
			refuseRequests(func() error { return err }).ServeHTTP(w, r)
			return
		}
		w.WriteHeader(buffered.status)
		w.Write(buffered.body.Bytes()) //nolint:errcheck // the client has gone
	})
}

// A bufferedResponse keeps status and body of a response in memory, without a limit, until they are sent.
type bufferedResponse struct {
	http.ResponseWriter
	status int
	body   bytes.Buffer
}

// WriteHeader implements [http.ResponseWriter]: it stores the status, and sends nothing.
func (b *bufferedResponse) WriteHeader(status int) { b.status = status }

// Write implements [http.ResponseWriter]: it appends to the body in memory, and sends nothing.
func (b *bufferedResponse) Write(data []byte) (int, error) { return b.body.Write(data) }
