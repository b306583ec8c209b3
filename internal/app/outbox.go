package app

import (
	"context"
	"log/slog"
	"time"

	"github.com/larder-cdn/larder/bot/schedule"
	"github.com/larder-cdn/larder/bot/webhook"
	"github.com/larder-cdn/larder/internal/parts"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/kvstore/durable"
	"github.com/larder-cdn/larder/logs"
)

// An outbox is what a folder has to send at its time: scheduled requests, and the messages of webhooks. A node that follows opens
// none: what is in its store is for the leader.
type outbox struct {
	runtime  *durable.Runtime
	schedule *schedule.Scheduler
	webhooks *webhook.Webhooks
}

// openOutbox opens it over a store. Nothing is sent unless the runtime belongs to a process at work.
func openOutbox(runtime *durable.Runtime, store *kvstore.Store, log *logs.Log, logger *slog.Logger) (o *outbox, err error) {
	o = &outbox{runtime: runtime}
	o.schedule, err = schedule.Open(runtime, schedule.Options{UserAgent: agent(), Logger: logger})
	if err == nil {
		o.webhooks, err = webhook.Open(webhook.Options{Runtime: runtime, Store: store, Log: log, UserAgent: agent(), Logger: logger})
	}
	return o, err
}

// runtimeClose is far more than a write takes; what is being sent ends at once.
const runtimeClose = 30 * time.Second

func closeRuntime(r *durable.Runtime) error {
	ctx, cancel := context.WithTimeout(context.Background(), runtimeClose)
	defer cancel()
	return r.Close(ctx)
}

// addOutbox sends what is due.
func (r *roleRun) addOutbox(folder *Reader) error {
	e, err := folder.outbox.get()
	if err != nil {
		return err
	}
	objects := e.runtime.Collector()
	r.metrics.MustRegister(objects)
	r.parts.AddEarly(parts.Part{Name: "errands", Run: func(ctx context.Context) error {
		e.webhooks.Run(ctx)
		r.metrics.Unregister(objects) // it reads the store, which is closed afterwards
		return nil
	}})
	return nil
}

// schedulePath is where the schedule is on the admin socket.
const schedulePath = "/schedule"

// What `larder schedule` asks.
type (
	// ScheduleListRequest asks for some requests on the schedule.
	ScheduleListRequest struct {
		After string `json:"after,omitempty"` // an id; "" from the first
	}
	// IDRequest names a request on the schedule, or a webhook.
	IDRequest struct {
		ID string `json:"id"`
	}
)

// Requests and responses of `larder webhook`.
type (
	// WebhookAddRequest describes a webhook.
	WebhookAddRequest struct {
		URL string `json:"url"`
		webhook.Subject
	}
	// WebhookAdded is a new webhook, and its JSON form.
	WebhookAdded struct {
		webhook.Hook
		Secret string `json:"secret"`
	}
)

// Operations about what is sent.
const (
	OpScheduleAdd    Operation[schedule.Request, any, schedule.State]      = "schedule-add"
	OpScheduleList   Operation[ScheduleListRequest, any, []schedule.State] = "schedule-list"
	OpScheduleShow   Operation[IDRequest, any, schedule.State]             = "schedule-show"
	OpScheduleRemove Operation[IDRequest, any, any]                        = "schedule-remove"
	OpWebhookAdd     Operation[WebhookAddRequest, any, WebhookAdded]       = "webhook-add"
	OpWebhookList    Operation[struct{}, any, []webhook.Hook]              = "webhook-list"
	OpWebhookRemove  Operation[IDRequest, any, any]                        = "webhook-remove"
)

// scheduleAtOnce is how many requests one answer has.
const scheduleAtOnce = 100

func (r *Reader) outboxOperations(all operations) {
	withOutbox(r, all, OpScheduleAdd, func(ctx context.Context, e *outbox, q schedule.Request) (schedule.State, error) {
		return e.schedule.Post(ctx, "", q)
	})
	withOutbox(r, all, OpScheduleList, func(ctx context.Context, e *outbox, q ScheduleListRequest) ([]schedule.State, error) {
		return e.schedule.List(ctx, q.After, scheduleAtOnce)
	})
	withOutbox(r, all, OpScheduleShow, func(ctx context.Context, e *outbox, q IDRequest) (schedule.State, error) {
		return e.schedule.Get(ctx, q.ID)
	})
	withOutbox(r, all, OpScheduleRemove, func(ctx context.Context, e *outbox, q IDRequest) (any, error) {
		return nil, e.schedule.Remove(ctx, q.ID)
	})
	withOutbox(r, all, OpWebhookAdd, func(ctx context.Context, e *outbox, q WebhookAddRequest) (WebhookAdded, error) {
		hook, secret, err := e.webhooks.Add(ctx, q.URL, q.Subject)
		return WebhookAdded{hook, secret}, err
	})
	withOutbox(r, all, OpWebhookList, func(ctx context.Context, e *outbox, _ struct{}) ([]webhook.Hook, error) {
		return e.webhooks.List(ctx)
	})
	withOutbox(r, all, OpWebhookRemove, func(ctx context.Context, e *outbox, q IDRequest) (any, error) {
		return nil, e.webhooks.Remove(ctx, q.ID)
	})
}

// withOutbox adds an operation that needs the outbox.
func withOutbox[Request, Answer any](r *Reader, all operations, o Operation[Request, any, Answer], do func(context.Context, *outbox, Request) (Answer, error)) {
	answer(all, o, func(ctx context.Context, request Request, _ func(any)) (none Answer, err error) {
		e, err := r.outbox.get()
		if err != nil {
			return none, err
		}
		return do(ctx, e, request)
	})
}
