package npm

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/larder-cdn/larder/bot/fetch"
)

// The limits of one response of a change feed. A server may ignore the requested number of changes.
const (
	askedChanges = 1000
	mostChanges  = 100_000
	changesBytes = 64 << 20
	maxChange    = 64 << 10 // bytes of one change
	maxSequence  = 4 << 10
)

// changesWait is how long a server holds a response back until something changes. It is less than a body may stall.
const changesWait = 30 * time.Second

// errEnough ends the reading of a response with more changes than are taken at once.
var errEnough = errors.New("enough")

// Changes requests the changes since a sequence from a change feed, CouchDB's _changes, at the URL feed. It calls take with the name of each changed
// package, at most 100,000, and returns the sequence after them, which is opaque. An error comes with the sequence that the last response reached, ""
// for none; take may have been called before it. With an empty since it calls take for nothing and returns the current sequence at once. Otherwise, if
// nothing has changed, the server holds the response back for up to 30 seconds. npm's own feed knows since and limit only and answers anything else
// with 400. After a 400 the client uses no other parameter, so that the server always responds at once, and gets the current sequence from the database
// itself. The operator configures feed, so it may have any host.
func (c *Client) Changes(ctx context.Context, feed, since string, take func(name string)) (last string, err error) {
	at, err := url.Parse(feed)
	if err != nil {
		return "", errors.New("the address of the change feed is no URL")
	}
	if !strings.HasSuffix(at.Path, "/_changes") {
		at = at.JoinPath("_changes")
	}
	ask := func(at *url.URL, read func(d *decoder) error) error {
		request := c.newRequest(at, http.Header{"Accept": {"application/json"}}, changesBytes)
		trusted := request.Trusted
		request.Trusted = func(u *url.URL) bool { return fetch.SameOrigin(u, at) || trusted(u) }
		return c.fetch.Get(ctx, request, func(r *fetch.Response) error {
			d := newDecoder("", r.Body)
			d.in.value = maxChange
			return read(d)
		})
	}
	follow := func(query url.Values) error {
		query.Set("limit", strconv.Itoa(askedChanges))
		asked := *at
		asked.RawQuery = query.Encode()
		return ask(&asked, func(d *decoder) error {
			last = ""
			return d.readChanges(func(sequence, name string) {
				if last = sequence; since != "" && name != "" {
					take(name)
				}
			})
		})
	}
	switch plain := c.plainFeed.Load(); {
	case plain && since == "":
		root := *at
		root.Path = cmp.Or(strings.TrimSuffix(at.Path, "/_changes"), "/")
		err = ask(&root, func(d *decoder) (err error) {
			last, err = d.readUpdateSequence()
			return err
		})
	case plain:
		err = follow(url.Values{"since": {since}})
	case since == "":
		err = follow(url.Values{"since": {"now"}, "include_docs": {"false"}})
	default:
		err = follow(url.Values{
			"since": {since}, "include_docs": {"false"},
			"feed": {"longpoll"}, "timeout": {strconv.FormatInt(changesWait.Milliseconds(), 10)},
		})
	}
	if answered, ok := errors.AsType[*fetch.Error](err); ok && answered.Status == http.StatusBadRequest && c.plainFeed.CompareAndSwap(false, true) {
		return c.Changes(ctx, feed, since, take)
	}
	if err == errEnough {
		err = nil
	}
	if err != nil {
		return last, fmt.Errorf("change feed: %w", err)
	}
	return last, nil
}

// readUpdateSequence reads the current sequence from what a database reports about itself.
func (d *decoder) readUpdateSequence() (sequence string, err error) {
	err = d.readObject("", func(key string) (err error) {
		if key != "update_seq" {
			return d.readValue(key, new(skipped))
		}
		sequence, err = d.readSequence(key)
		return err
	})
	if err == nil && sequence == "" {
		return "", d.newMalformedError("update_seq", "missing")
	}
	return sequence, err
}

// readChanges reads the response of a change feed. It calls change for each change, and for the last sequence with the name "". A response without a
// last sequence is an error. After mostChanges changes it stops with errEnough if more follow.
func (d *decoder) readChanges(change func(sequence, name string)) error {
	found := false
	err := d.readObject("", func(key string) error {
		switch key {
		case "results":
			return d.readArray(key, func() error {
				var one struct {
					Seq json.RawMessage `json:"seq"`
					ID  string          `json:"id"`
				}
				if err := d.readValue(key, &one); err != nil {
					return err
				}
				sequence, err := d.parseSequence("results.seq", one.Seq)
				if err == nil {
					change(sequence, one.ID)
				}
				return err
			})
		case "last_seq":
			sequence, err := d.readSequence(key)
			if found = err == nil; found {
				change(sequence, "")
			}
			return err
		}
		return d.readValue(key, new(skipped))
	})
	if err == nil && !found {
		return d.newMalformedError("last_seq", "missing")
	}
	return err
}

// readSequence reads the sequence that a field has; see parseSequence.
func (d *decoder) readSequence(field string) (string, error) {
	var raw json.RawMessage
	if err := d.readValue(field, &raw); err != nil {
		return "", err
	}
	return d.parseSequence(field, raw)
}

// parseSequence returns a sequence as text: a string, or any other JSON such as a number unchanged. A missing or too long one is an error.
func (d *decoder) parseSequence(field string, raw json.RawMessage) (string, error) {
	var text string
	if err := json.Unmarshal(raw, &text); err != nil {
		text = string(raw)
	}
	if text == "" || text == "null" || len(text) > maxSequence {
		return "", d.newMalformedError(field, "no sequence")
	}
	return text, nil
}

// readArray reads the array that a field has. It calls member to read each value, and returns its first error. After mostChanges values it stops with
// errEnough if more follow.
func (d *decoder) readArray(field string, member func() error) error {
	d.in.allowValue(d.json)
	token, err := d.json.Token()
	if err != nil {
		return d.newSyntaxError(field, err)
	}
	if token != json.Delim('[') {
		return d.newMalformedError(field, "not an array")
	}
	for n := 0; ; n++ {
		d.in.allowValue(d.json)
		if !d.json.More() {
			break
		}
		if n == mostChanges {
			return errEnough
		}
		if err := member(); err != nil {
			return err
		}
	}
	if _, err := d.json.Token(); err != nil {
		return d.newSyntaxError(field, err)
	}
	return nil
}
