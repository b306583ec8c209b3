package review

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/larder-cdn/larder/bot/github"
)

var someHead = strings.Repeat("0123456789abcdef", 3)[:40]

func TestParseEvent(t *testing.T) {
	for name, tt := range map[string]struct {
		kind, payload string
		want          event
		refused       string // "" where want counts, "-" where there is nothing to do
	}{
		"opened":          {"pull_request", `{"action":"opened","pull_request":{"number":7,"head":{"sha":"H"}},"repository":{"full_name":"o/r"}}`, event{repository: "o/r", pull: 7, head: someHead}, ""},
		"closed":          {"pull_request", `{"action":"closed","pull_request":{"number":7,"head":{"sha":"H"}},"repository":{"full_name":"o/r"}}`, event{repository: "o/r", pull: 7, head: someHead, closed: true}, ""},
		"another base":    {"pull_request", `{"action":"edited","changes":{"base":{}},"pull_request":{"number":7,"head":{"sha":"H"}},"repository":{"full_name":"o/r"}}`, event{repository: "o/r", pull: 7, head: someHead, again: true}, ""},
		"another title":   {"pull_request", `{"action":"edited","changes":{"title":{}},"pull_request":{"number":7,"head":{"sha":"H"}},"repository":{"full_name":"o/r"}}`, event{}, "-"},
		"check run":       {"check_run", `{"action":"rerequested","check_run":{"name":"larder review","head_sha":"H","external_id":"larder-pull-7"},"repository":{"full_name":"o/r"}}`, event{repository: "o/r", pull: 7, head: someHead, again: true}, ""},
		"odd external id": {"check_run", `{"action":"rerequested","check_run":{"name":"larder review","head_sha":"H","external_id":"larder-pull--7"},"repository":{"full_name":"o/r"}}`, event{repository: "o/r", head: someHead, again: true}, ""},
		"another's run":   {"check_run", `{"action":"rerequested","check_run":{"name":"build","head_sha":"H"},"repository":{"full_name":"o/r"}}`, event{}, "-"},
		"check suite":     {"check_suite", `{"action":"rerequested","check_suite":{"head_sha":"H"},"repository":{"full_name":"o/r"}}`, event{repository: "o/r", head: someHead, again: true}, ""},
		"suite requested": {"check_suite", `{"action":"requested","check_suite":{"head_sha":"H"},"repository":{"full_name":"o/r"}}`, event{}, "-"},
		"push":            {"push", `{`, event{}, "-"},
		"no JSON":         {"pull_request", `{`, event{}, "not what GitHub sends"},
		"a list":          {"pull_request", `[]`, event{}, "not what GitHub sends"},
		"no repository":   {"pull_request", `{"action":"opened","pull_request":{"number":7,"head":{"sha":"H"}}}`, event{}, "no repository"},
		"odd repository":  {"pull_request", `{"action":"opened","pull_request":{"number":7,"head":{"sha":"H"}},"repository":{"full_name":"../.."}}`, event{}, "no repository"},
		"no commit":       {"pull_request", `{"action":"opened","pull_request":{"number":7,"head":{"sha":"main"}},"repository":{"full_name":"o/r"}}`, event{}, "no commit"},
		"no number":       {"pull_request", `{"action":"opened","pull_request":{"head":{"sha":"H"}},"repository":{"full_name":"o/r"}}`, event{}, "no pull request"},
		"negative":        {"pull_request", `{"action":"opened","pull_request":{"number":-7,"head":{"sha":"H"}},"repository":{"full_name":"o/r"}}`, event{}, "no pull request"},
	} {
		got, err := parseEvent(tt.kind, []byte(strings.ReplaceAll(tt.payload, `"H"`, `"`+someHead+`"`)))
		switch {
		case tt.refused == "-" && !errors.Is(err, errUnwanted), tt.refused == "" && (err != nil || got != tt.want),
			len(tt.refused) > 1 && (err == nil || !strings.Contains(err.Error(), tt.refused)):
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
}

// Whatever comes, there is no panic, and what is taken can be asked GitHub for.
func FuzzParseEvent(f *testing.F) {
	for _, kind := range []string{"pull_request", "check_run", "check_suite", "push"} {
		f.Add(kind, []byte(`{"action":"opened","pull_request":{"number":7,"head":{"sha":"`+someHead+`"}},"repository":{"full_name":"o/r"}}`))
		f.Add(kind, []byte(`{"action":"rerequested","check_run":{"name":"larder review","head_sha":"`+someHead+`","external_id":"larder-pull-7"},"check_suite":{"head_sha":"`+someHead+`"},"repository":{"full_name":"o/r"}}`))
	}
	f.Fuzz(func(t *testing.T, kind string, payload []byte) {
		e, err := parseEvent(kind, payload)
		if err != nil {
			if e != (event{}) {
				t.Errorf("%+v with %v", e, err)
			}
			return
		}
		owner, name, ok := strings.Cut(e.repository, "/")
		if !ok || strings.ContainsAny(owner+name, "/?#% ") || len(e.head) != 40 && len(e.head) != 64 || e.pull < 0 || !json.Valid(payload) {
			t.Errorf("%+v", e)
		}
	})
}

// What was seen is forgotten in the order in which it came.
func TestSeen(t *testing.T) {
	s := newSeen(3)
	delivery := func(id string) github.Delivery { return github.Delivery{ID: id, Event: "push", Payload: []byte(id)} }
	for _, id := range []string{"a", "b", "c"} {
		if !s.first(delivery(id)) || s.first(delivery(id)) {
			t.Errorf("%s", id)
		}
	}
	if !s.first(delivery("d")) || !s.first(delivery("a")) || s.first(delivery("d")) || s.first(delivery("c")) || len(s.known) != 6 {
		t.Errorf("remembers %d", len(s.known))
	}
	if other := (github.Delivery{ID: "other", Event: "push", Payload: []byte("d")}); s.first(other) {
		t.Error("the same payload by another id is new")
	}
	if other := (github.Delivery{ID: "d", Event: "push", Payload: []byte("other")}); s.first(other) {
		t.Error("another payload by the same id is new")
	}
	if s.forget(delivery("d")); !s.first(delivery("d")) {
		t.Error("not forgotten")
	}
}
