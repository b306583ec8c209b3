package app

import (
	"context"
	"net/http"
	"time"

	"github.com/larder-cdn/larder/bot/notify"
	"github.com/larder-cdn/larder/internal/answers"
)

// runtimeClose is how long closing a runtime may take. That is far more than a write takes; requests that it sends end at once.
const runtimeClose = 30 * time.Second

// addOutbox opens the outbox of the folder, which from then on sends scheduled requests and messages of webhooks when they are
// due. It adds the part that turns new entries of the log into such messages, and the outbox's metrics.
func (r *roleRun) addOutbox(folder *Reader) error {
	o, err := folder.outbox.get()
	if err != nil {
		return err
	}
	objects := o.Runtime.Collector()
	r.metrics.MustRegister(objects)
	r.parts.AddEarly(o.Part(func() { r.metrics.Unregister(objects) })) // it reads the store, which is closed afterwards
	return nil
}

// schedulePath is where the schedule is on the admin socket.
const schedulePath = "/schedule"

// Requests of `larder schedule`.
type (
	// ScheduleListRequest requests up to 100 requests on the schedule, in the order of their ids.
	ScheduleListRequest struct {
		After string `json:"after,omitempty"` // the id before the first one; "" from the beginning
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
		notify.Subject
	}
	// WebhookAdded is a new webhook with the secret that authenticates its messages, and its JSON form.
	WebhookAdded struct {
		notify.Webhook
		Secret string `json:"secret"`
	}
)

// Operations of the outbox.
const (
	OpScheduleAdd    Operation[notify.Request, any, notify.State]        = "schedule-add"
	OpScheduleList   Operation[ScheduleListRequest, any, []notify.State] = "schedule-list"
	OpScheduleShow   Operation[IDRequest, any, notify.State]             = "schedule-show"
	OpScheduleRemove Operation[IDRequest, any, any]                      = "schedule-remove"
	OpWebhookAdd     Operation[WebhookAddRequest, any, WebhookAdded]     = "webhook-add"
	OpWebhookList    Operation[struct{}, any, []notify.Webhook]          = "webhook-list"
	OpWebhookRemove  Operation[IDRequest, any, any]                      = "webhook-remove"
)

// scheduleAtOnce is how many requests a response to [OpScheduleList] lists at most.
const scheduleAtOnce = 100

// addOutboxOperations adds to all the operations of `larder schedule` (add, list, show and remove HTTP requests that are
// sent at a time) and `larder webhook` (add, list and remove), which open the outbox on first use.
func (r *Reader) addOutboxOperations(all operations) {
	addOutboxOperation(r, all, OpScheduleAdd, func(ctx context.Context, o *notify.Outbox, q notify.Request) (notify.State, error) {
		return o.Schedule.Post(ctx, "", q)
	})
	addOutboxOperation(r, all, OpScheduleList, func(ctx context.Context, o *notify.Outbox, q ScheduleListRequest) ([]notify.State, error) {
		return o.Schedule.List(ctx, q.After, scheduleAtOnce)
	})
	addOutboxOperation(r, all, OpScheduleShow, func(ctx context.Context, o *notify.Outbox, q IDRequest) (notify.State, error) {
		return o.Schedule.Get(ctx, q.ID)
	})
	addOutboxOperation(r, all, OpScheduleRemove, func(ctx context.Context, o *notify.Outbox, q IDRequest) (any, error) {
		return nil, o.Schedule.Remove(ctx, q.ID)
	})
	addOutboxOperation(r, all, OpWebhookAdd, func(ctx context.Context, o *notify.Outbox, q WebhookAddRequest) (WebhookAdded, error) {
		hook, secret, err := o.Webhooks.Add(ctx, q.URL, q.Subject)
		return WebhookAdded{hook, secret}, err
	})
	addOutboxOperation(r, all, OpWebhookList, func(ctx context.Context, o *notify.Outbox, _ struct{}) ([]notify.Webhook, error) {
		return o.Webhooks.List(ctx)
	})
	addOutboxOperation(r, all, OpWebhookRemove, func(ctx context.Context, o *notify.Outbox, q IDRequest) (any, error) {
		return nil, o.Webhooks.Remove(ctx, q.ID)
	})
}

// addOutboxOperation adds to all the operation op, which opens the outbox (schedules and webhooks) of r and calls do with it.
func addOutboxOperation[Request, Answer any](r *Reader, all operations, op Operation[Request, any, Answer], do func(context.Context, *notify.Outbox, Request) (Answer, error)) {
	addRequest(all, op, func(ctx context.Context, request Request) (none Answer, err error) {
		o, err := r.outbox.get()
		if err != nil {
			return none, err
		}
		return do(ctx, o, request)
	})
}

// refuseRequests returns a handler that responds 503 with the error of why as JSON, such as that of the schedule on a follower:
// only the leader has it.
func refuseRequests(why func() error) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		(&answers.Failure{Status: http.StatusServiceUnavailable, Message: why().Error()}).SendJSON(w, r)
	})
}
