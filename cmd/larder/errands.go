package main

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/larder-cdn/larder/bot/schedule"
	"github.com/larder-cdn/larder/bot/webhook"
	"github.com/larder-cdn/larder/kvstore/durable"
)

// errands are what a folder has to send at its time: scheduled requests, and the messages of webhooks.
type errands struct {
	runtime  *durable.Runtime
	schedule *schedule.Scheduler
	webhooks *webhook.Webhooks
}

// openErrands opens them over the folder's store. Nothing is sent unless the folder belongs to a process at work: a
// command that is over in a moment would only begin to.
func (f *folder) openErrands(logger *slog.Logger) (*errands, error) {
	e := &errands{runtime: durable.New(f.store, durable.Options{Logger: logger, Quiet: !f.working})}
	agent := "larder/" + version()
	var err error
	e.schedule, err = schedule.Open(e.runtime, schedule.Options{UserAgent: agent, Logger: logger})
	if err == nil {
		e.webhooks, err = webhook.Open(webhook.Options{Runtime: e.runtime, Store: f.store, Log: f.log, UserAgent: agent, Logger: logger})
	}
	if err != nil {
		return nil, errors.Join(err, e.close())
	}
	return e, nil
}

// closeErrands is far more than a write takes; what is being sent ends at once.
const closeErrands = 30 * time.Second

func (e *errands) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), closeErrands)
	defer cancel()
	return e.runtime.Close(ctx)
}

// runErrands sends what is due until ctx ends.
func (p *daemon) runErrands(ctx context.Context, group *errgroup.Group) (http.Handler, error) {
	e, err := p.folder.errands()
	if err != nil {
		return nil, err
	}
	objects := e.runtime.Collector()
	p.metrics.MustRegister(objects)
	group.Go(func() error {
		e.webhooks.Run(ctx)
		p.metrics.Unregister(objects) // it reads the store, which is closed afterwards
		return nil
	})
	return e.schedule.Handler(schedulePath), nil
}

// schedulePath is where the schedule is on the admin socket.
const schedulePath = "/schedule"
