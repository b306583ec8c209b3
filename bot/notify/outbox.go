package notify

import (
	"bytes"
	"encoding/json"
	"log/slog"

	"github.com/larder-cdn/larder/internal/parts"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/kvstore/durable"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/server/purge"
)

// An Outbox is what a store has to send: scheduled requests, and the messages of webhooks. A node that follows opens none: what is in its
// store is for the leader.
type Outbox struct {
	Runtime  *durable.Runtime
	Schedule *Scheduler
	Webhooks *Webhooks
}

// OpenOutbox opens the outbox of a store. Nothing is sent unless the runtime belongs to a running process.
func OpenOutbox(runtime *durable.Runtime, store *kvstore.Store, log *logs.Log, userAgent string, logger *slog.Logger) (o *Outbox, err error) {
	o = &Outbox{Runtime: runtime}
	if o.Schedule, err = OpenScheduler(runtime, SchedulerOptions{UserAgent: userAgent, Logger: logger}); err == nil {
		o.Webhooks, err = OpenWebhooks(WebhookOptions{Runtime: runtime, Store: store, Log: log, UserAgent: userAgent, Logger: logger})
	}
	return o, err
}

// Part sends what is due. stopped is called when it ends, before the store is closed.
func (o *Outbox) Part(stopped func()) parts.Part {
	return parts.Part{Name: "outbox", Run: parts.RunUntilDone(o.Webhooks.Run), Stop: parts.StopBy(stopped)}
}

// keys is a range of keys of the store.
type keys struct {
	namespace kvstore.Namespace
	prefix    []byte
}

// stored returns where a store has its outbox: objects, and purges of caches.
func stored() (all []keys) {
	for _, class := range []string{"request", "webhooks", "webhook-message"} {
		for _, prefix := range durable.RowPrefixes(class) {
			all = append(all, keys{kvstore.Durable, prefix})
		}
	}
	for _, prefix := range purge.Prefixes {
		all = append(all, keys{kvstore.Queue, prefix})
	}
	return all
}

// A Row is a row of an outbox as the nodes of a cluster share it.
type Row struct {
	Namespace byte   `json:"n"`
	Key       []byte `json:"k"`
	Value     []byte `json:"v"`
}

// NewRow copies a row of a store.
func NewRow(ns kvstore.Namespace, key, value []byte) Row {
	return Row{byte(ns), bytes.Clone(key), bytes.Clone(value)}
}

// Snapshot returns the outbox of a store as JSON, after other rows.
func Snapshot(store *kvstore.Store, others []Row) ([]byte, error) {
	at := store.Snapshot()
	defer at.Close()
	rows := append([]Row{}, others...)
	for _, where := range stored() {
		for item, err := range at.Scan(where.namespace, kvstore.Range{Prefix: where.prefix}) {
			if err != nil {
				return nil, err
			}
			rows = append(rows, NewRow(where.namespace, item.Key, item.Value))
		}
	}
	return json.Marshal(rows)
}

// Replace replaces the outbox of a store by that of a snapshot, nil for an empty one. In the same batch, mark records whose it is.
func Replace(store *kvstore.Store, snapshot []byte, mark func(*kvstore.Batch)) error {
	var rows []Row
	if snapshot != nil {
		if err := json.Unmarshal(snapshot, &rows); err != nil {
			return err
		}
	}
	b := store.NewBatch()
	defer b.Close()
	for _, where := range stored() {
		for item, err := range store.Scan(where.namespace, kvstore.Range{Prefix: where.prefix}) {
			if err != nil {
				return err
			}
			b.Delete(where.namespace, bytes.Clone(item.Key))
		}
	}
	for _, row := range rows {
		b.Set(kvstore.Namespace(row.Namespace), row.Key, row.Value)
	}
	mark(b)
	return b.Commit()
}
