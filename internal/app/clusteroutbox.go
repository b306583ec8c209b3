package app

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/larder-cdn/larder/api/admin"
	"github.com/larder-cdn/larder/bot"
	"github.com/larder-cdn/larder/bot/notify"
	"github.com/larder-cdn/larder/internal/answers"
	"github.com/larder-cdn/larder/internal/retry"
	"github.com/larder-cdn/larder/kvstore"
)

// The outbox of a cluster is what the leader has to send at its time, and does not follow from the log: requests on the schedule,
// webhooks and their messages, withdrawals that caches have yet to drop. The bucket has the rows, encrypted; the node that takes
// over starts with them, and nodes that follow have none. It also begins with npm's download counts, which take a month to
// collect again.

// outboxKey is the row that says that the outbox here is the cluster's.
var outboxKey = kvstore.Key("cluster", "errands")

// outboxEvery is how often progress is saved. A change that a client asked for is saved before it is acknowledged.
const (
	outboxEvery = 5 * time.Second
	demandEvery = time.Hour // there is much of it, and a little is new every minute
)

// outboxSaved is what the bucket has.
type outboxSaved struct {
	sync.Mutex
	sum    kvstore.Hash
	demand []notify.Row // as it was then
	read   time.Time
}

// readDemand returns the rows of how much packages are in demand.
func readDemand(store *kvstore.Store) (rows []notify.Row, err error) {
	for item, err := range store.Scan(kvstore.Upstreams, kvstore.Range{}) {
		if err != nil {
			return nil, err
		}
		if bot.IsDemand(item.Key) {
			rows = append(rows, notify.NewRow(kvstore.Upstreams, item.Key, item.Value))
		}
	}
	return rows, nil
}

// dropOutbox has a node that follows have none. What a machine had before it joined stays, for when it leads.
func dropOutbox(store *kvstore.Store) error {
	for _, err := range store.Scan(kvstore.Meta, kvstore.Range{Prefix: outboxKey}) {
		if err != nil {
			return err
		}
		return notify.Replace(store, nil, func(b *kvstore.Batch) { b.Delete(kvstore.Meta, outboxKey) })
	}
	return nil
}

// loadOutbox replaces the outbox here by that of the leader before.
func (l *clusterLeader) loadOutbox(ctx context.Context) error {
	data, err := l.node.cluster.LoadSide(ctx, l.node.key)
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
		return fmt.Errorf("couldn't take over webhooks and schedules of the leader before from %s: %w", l.node.bucket, err)
	}
	return nil
}

// saveOutbox has the bucket have the outbox that is here.
func (l *clusterLeader) saveOutbox(ctx context.Context) error {
	l.saved.Lock()
	defer l.saved.Unlock()
	if now := time.Now(); l.saved.read.IsZero() || now.Sub(l.saved.read) >= demandEvery {
		demand, err := readDemand(l.node.folder.store)
		if err != nil {
			return err
		}
		l.saved.demand, l.saved.read = demand, now
	}
	data, err := notify.Snapshot(l.node.folder.store, l.saved.demand)
	if err != nil {
		return err
	}
	sum := kvstore.Sum(data)
	if sum == l.saved.sum {
		return nil
	}
	if err := l.node.cluster.SaveSide(ctx, l.node.key, data); err != nil {
		return err
	}
	l.saved.sum = sum
	return nil
}

// keepOutbox saves progress now and then.
func (l *clusterLeader) keepOutbox(ctx context.Context) {
	for retry.Sleep(ctx, outboxEvery) == nil {
		if err := l.saveOutbox(ctx); err != nil && ctx.Err() == nil {
			l.run.logger.Warn("couldn't save webhooks and schedules for the next leader; trying again", "err", err)
		}
	}
}

// notSharedYet returns the error of a change that is made here, and may be lost with this node.
func notSharedYet(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("the change is made on this node, and is lost if another takes over now: %w", err)
}

// saving has operations that change the outbox be answered when the bucket has the change.
func (l *clusterLeader) saving(all operations) operations {
	for _, name := range []string{string(OpScheduleAdd), string(OpScheduleRemove), string(OpWebhookAdd), string(OpWebhookRemove)} {
		all[name] = l.afterSaving(all[name])
	}
	return all
}

func (l *clusterLeader) afterSaving(next admin.Operation) admin.Operation {
	return func(ctx context.Context, request admin.Request, report func(any)) (any, error) {
		result, err := next(ctx, request, report)
		if err == nil {
			err = notSharedYet(l.saveOutbox(ctx))
		}
		return result, err
	}
}

// savingHTTP does the same for programs that schedule requests over HTTP.
func (l *clusterLeader) savingHTTP(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet || r.Method == http.MethodHead {
			next.ServeHTTP(w, r)
			return
		}
		buffered := &bufferedResponse{ResponseWriter: w, status: http.StatusOK}
		next.ServeHTTP(buffered, r)
		if err := notSharedYet(l.saveOutbox(r.Context())); err != nil {
			(&answers.Failure{Status: http.StatusServiceUnavailable, Message: err.Error()}).SendJSON(w, r)
			return
		}
		w.WriteHeader(buffered.status)
		w.Write(buffered.body.Bytes()) //nolint:errcheck // the client has gone
	})
}

// A bufferedResponse keeps a response until it is sent.
type bufferedResponse struct {
	http.ResponseWriter
	status int
	body   bytes.Buffer
}

func (b *bufferedResponse) WriteHeader(status int)         { b.status = status }
func (b *bufferedResponse) Write(data []byte) (int, error) { return b.body.Write(data) }

// noSchedule answers on a node that has no outbox.
func (n *clusterNode) noSchedule() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		(&answers.Failure{Status: http.StatusServiceUnavailable, Message: n.elsewhere().Error()}).SendJSON(w, r)
	})
}
