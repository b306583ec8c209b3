package notify

import (
	"bytes"
	"context"
	"encoding/json"
	"sync"
	"time"

	"github.com/larder-cdn/larder/internal/parts"
	"github.com/larder-cdn/larder/internal/retry"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/kvstore/durable"
)

// An Outbox is what a store has to send: scheduled requests, the messages of webhooks, and purges. A node that follows opens
// none, because the leader sends what is in its store.
type Outbox struct {
	Runtime  *durable.Runtime
	Schedule *Scheduler
	Webhooks *Webhooks
}

// OpenOutbox opens the outbox of a store: the schedule, the webhooks and the purge requests. From then on the runtime sends what
// is due, unless it is quiet, which means that it fires no alarms. New entries of the log become messages only while
// [Outbox.Part] runs.
func OpenOutbox(o WebhookOptions) (out *Outbox, err error) {
	out = &Outbox{Runtime: o.Runtime}
	if out.Schedule, err = OpenScheduler(o.Runtime, SchedulerOptions{UserAgent: o.UserAgent, Transport: o.Transport, Logger: o.Logger}); err == nil {
		out.Webhooks, err = OpenWebhooks(o)
	}
	return out, err
}

// Part returns the part of a role that turns new entries of the log into messages, and corrects the times of requests when the
// clock was set back. stopped is called once that has ended, before the store is closed.
func (o *Outbox) Part(stopped func()) parts.Part {
	return parts.Part{Name: "outbox", Run: parts.RunUntilDone(o.run), Stop: parts.StopBy(stopped)}
}

// clockCheck is how often the outbox checks whether the clock was set back.
const clockCheck = time.Minute

// run turns entries of the log into messages, and corrects alarms at once and whenever the clock was set back, until ctx ends.
func (o *Outbox) run(ctx context.Context) {
	var clock sync.WaitGroup
	defer clock.Wait()
	clock.Go(func() {
		o.correctAlarms(ctx)
		_ = retry.FollowClock(ctx, clockCheck, o.Runtime.Now, func(time.Duration) error { // it ends with ctx
			o.correctAlarms(ctx)
			return nil
		})
	})
	o.Webhooks.Run(ctx)
}

// correctAlarms moves the alarms of requests to earlier times if only a clock which was ahead can have set them. It logs an
// error.
func (o *Outbox) correctAlarms(ctx context.Context) {
	for _, s := range []*Scheduler{o.Schedule, o.Webhooks.messages, o.Webhooks.purges} {
		if err := s.correctAlarms(ctx, o.Runtime.Now()); err != nil && ctx.Err() == nil {
			s.options.Logger.Warn("couldn't correct when requests are due after the clock was set back; those requests may be late", "err", err)
		}
	}
}

// rowPrefixes returns the prefixes of the keys of all rows of an outbox, which are in the namespace [kvstore.Durable].
func rowPrefixes() (all [][]byte) {
	for _, class := range []string{requestClass, registryClass, messageClass, purgeClass} {
		all = append(all, durable.RowPrefixes(class)...)
	}
	return all
}

// A Row is a row of an outbox as the nodes of a cluster share it.
type Row struct {
	Namespace byte   `json:"n"`
	Key       []byte `json:"k"`
	Value     []byte `json:"v"`
}

// NewRow returns the row of a store with this namespace, key and value, in the form in which nodes share rows. It copies key and
// value.
func NewRow(ns kvstore.Namespace, key, value []byte) Row {
	return Row{byte(ns), bytes.Clone(key), bytes.Clone(value)}
}

// Snapshot returns the rows of a store's outbox as JSON, for the next leader of the cluster. The rows in others come before them.
func Snapshot(store *kvstore.Store, others []Row) ([]byte, error) {
	at := store.Snapshot()
	defer at.Close()
	rows := append([]Row{}, others...)
	for _, prefix := range rowPrefixes() {
		for item, err := range at.Scan(kvstore.Durable, kvstore.Range{Prefix: prefix}) {
			if err != nil {
				return nil, err
			}
			rows = append(rows, NewRow(kvstore.Durable, item.Key, item.Value))
		}
	}
	return json.Marshal(rows)
}

// Replace deletes all rows of a store's outbox and writes those of a snapshot, nil for none, in one batch. To the same batch,
// mark adds what records whose outbox it is. After an error the store is unchanged.
func Replace(store *kvstore.Store, snapshot []byte, mark func(*kvstore.Batch)) error {
	var rows []Row
	if snapshot != nil {
		if err := json.Unmarshal(snapshot, &rows); err != nil {
			return err
		}
	}
	b := store.NewBatch()
	defer b.Close()
	for _, prefix := range rowPrefixes() {
		for item, err := range store.Scan(kvstore.Durable, kvstore.Range{Prefix: prefix}) {
			if err != nil {
				return err
			}
			b.Delete(kvstore.Durable, bytes.Clone(item.Key))
		}
	}
	for _, row := range rows {
		b.Set(kvstore.Namespace(row.Namespace), row.Key, row.Value)
	}
	mark(b)
	return b.Commit()
}
