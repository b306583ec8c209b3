package app

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/larder-cdn/larder/api"
	"github.com/larder-cdn/larder/bot/notify"
	"github.com/larder-cdn/larder/internal/settings"
	"github.com/larder-cdn/larder/kvstore"
)

// The schedule is on the admin socket, beside the operations.
func TestScheduleOnAdminSocket(t *testing.T) {
	quiet := slog.New(slog.DiscardHandler)
	s := settings.New()
	s.Data = t.TempDir()
	w, err := openWriter(s, writerConfig{open: openOptions{working: true, store: kvstore.Options{MinFreeBytes: -1}}}, quiet)
	if err != nil {
		t.Fatal(err)
	}
	e, err := w.folder.outbox.get()
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	}()
	socket, err := api.ListenAdmin(s.Data)
	if err != nil {
		t.Fatal(err)
	}
	server := newAdminServer(t.Context(), w.operations(), e.Schedule.Handler(schedulePath), http.NotFoundHandler(), quiet)
	go server.Serve(socket) //nolint:errcheck // it ends with Close
	defer server.Close()
	got := make(chan string, 1)
	target := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		got <- r.Method + " " + r.URL.Path + " " + string(body)
	}))
	defer target.Close()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", filepath.Join(s.Data, "admin.sock"))
	}}}
	body := `{"url": "` + target.URL + `/x", "method": "PUT", "body": "hello"}`
	response, err := client.Post("http://larder/schedule", "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	response.Body.Close()
	if response.StatusCode != http.StatusCreated {
		t.Errorf("status %d", response.StatusCode)
	}
	if got := <-got; got != "PUT /x hello" {
		t.Errorf("got %q", got)
	}
	commands, err := Dial(t.Context(), s.Data)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := OpWebhookList.Ask(t.Context(), commands, struct{}{}, nil); err != nil {
		t.Error(err)
	}
}

// A node that follows sends none of what it had to send when it published, and keeps it until it knows that the bucket has it.
func TestFollowerSendsNothing(t *testing.T) {
	s := settings.New()
	s.Data = t.TempDir()
	got := make(chan string, 10)
	target := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { got <- r.URL.Path }))
	defer target.Close()
	with := func(o openOptions, do func(folder *Reader) error) {
		t.Helper()
		o.store.MinFreeBytes = -1
		w, err := openWriter(s, writerConfig{open: o}, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(do(w.folder), w.Close()); err != nil {
			t.Fatal(err)
		}
	}
	with(openOptions{}, func(folder *Reader) error {
		o, err := folder.outbox.get()
		if err == nil {
			_, err = o.Schedule.Post(t.Context(), "", notify.Request{URL: target.URL + "/due"})
		}
		return err
	})
	with(openOptions{working: true}, func(*Reader) error { // a follower opens the runtime, and no outbox
		select {
		case path := <-got:
			t.Errorf("a node that follows has sent %s", path)
		case <-time.After(300 * time.Millisecond):
		}
		return nil
	})
	with(openOptions{working: true}, func(folder *Reader) error {
		_, err := folder.outbox.get()
		select {
		case <-got:
		case <-time.After(2 * time.Minute):
			t.Error("the request is lost")
		}
		return err
	})
}
