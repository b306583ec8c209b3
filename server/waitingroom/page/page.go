// Package page is what who waits is shown: a page that refreshes itself, or the same as
// JSON.
//
// The built-in page needs nothing but itself: no script, nothing of another address. It
// speaks the reader's language, of those in languages.yaml. An operator's own template is
// Mustache with the names of the JSON; it reads no file, and what it renders is bounded.
// Whether somebody waits, and how long, is not decided here.
package page

import (
	"bytes"
	"crypto/rand"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"html/template"
	"math"
	"strings"
	"sync"
	"time"

	"github.com/cbroglie/mustache"
	"golang.org/x/text/language"

	"github.com/larder-cdn/larder/server/waitingroom/config"
)

// State is what there is to tell to one user who waits.
type State struct {
	Method          config.Method
	QueueAll        bool
	WaitKnown       bool
	Wait            time.Duration    // estimated, for FIFO
	Percentiles     [3]time.Duration // in which 25, 50 and 75 of a hundred are let in, for Random
	LastUpdated     time.Time        // the user's last chance
	RefreshInterval time.Duration    // after which the next one is
	Now             time.Time
	Event           *config.Event // that is on or is waited for
	Phase           config.Phase
}

// Status is a State as JSON and templates have it. The names are those that clients of
// Cloudflare's waiting rooms know. Times of waiting are in whole minutes.
type Status struct {
	InWaitingRoom              bool    `json:"inWaitingRoom"`
	WaitTimeKnown              bool    `json:"waitTimeKnown"`
	WaitTime                   int     `json:"waitTime"`
	WaitTime25Percentile       int     `json:"waitTime25Percentile"`
	WaitTime50Percentile       int     `json:"waitTime50Percentile"`
	WaitTime75Percentile       int     `json:"waitTime75Percentile"`
	WaitTimeFormatted          string  `json:"waitTimeFormatted"`
	QueueIsFull                bool    `json:"queueIsFull"`
	QueueAll                   bool    `json:"queueAll"`
	LastUpdated                instant `json:"lastUpdated"`
	RefreshIntervalSeconds     int     `json:"refreshIntervalSeconds"`
	QueueingMethod             string  `json:"queueingMethod"`
	IsFIFOQueue                bool    `json:"isFIFOQueue"`
	IsRandomQueue              bool    `json:"isRandomQueue"`
	IsPassthroughQueue         bool    `json:"isPassthroughQueue"`
	IsRejectQueue              bool    `json:"isRejectQueue"`
	IsEventActive              bool    `json:"isEventActive"`
	IsEventPrequeueing         bool    `json:"isEventPrequeueing"`
	TimeUntilEventStart        int     `json:"timeUntilEventStart"`
	TimeUntilEventStartFormat  string  `json:"timeUntilEventStartFormatted"`
	TimeUntilEventEnd          int     `json:"timeUntilEventEnd"`
	TimeUntilEventEndFormatted string  `json:"timeUntilEventEndFormatted"`
	ShuffleAtEventStart        bool    `json:"shuffleAtEventStart"`
}

// instant is a time as JavaScript's toISOString writes it.
type instant time.Time

func (i instant) String() string { return time.Time(i).UTC().Format("2006-01-02T15:04:05.000Z") }

func (i instant) MarshalJSON() ([]byte, error) { return json.Marshal(i.String()) }

// status puts a state into a language's words.
func (s *State) status(w *words) Status {
	t := Status{
		InWaitingRoom: true, WaitTimeKnown: s.WaitKnown, WaitTimeFormatted: w.Unavailable,
		QueueIsFull: s.Method == config.Reject, QueueAll: s.QueueAll,
		LastUpdated: instant(s.LastUpdated), RefreshIntervalSeconds: int(s.RefreshInterval / time.Second),
		QueueingMethod: string(s.Method), IsFIFOQueue: s.Method == config.FIFO, IsRandomQueue: s.Method == config.Random,
		IsPassthroughQueue: s.Method == config.Passthrough, IsRejectQueue: s.Method == config.Reject,
		IsEventActive: s.Phase == config.EventOn, IsEventPrequeueing: s.Phase == config.Prequeueing,
	}
	switch {
	case !s.WaitKnown:
	case t.IsRandomQueue:
		t.WaitTime25Percentile, t.WaitTime50Percentile, t.WaitTime75Percentile = wait(s.Percentiles[0]), wait(s.Percentiles[1]), wait(s.Percentiles[2])
		t.WaitTime = t.WaitTime50Percentile
		t.WaitTimeFormatted = w.Between(t.WaitTime25Percentile, t.WaitTime75Percentile)
	default:
		t.WaitTime = wait(s.Wait)
		t.WaitTimeFormatted = w.Duration(t.WaitTime)
	}
	if e := s.Event; e != nil {
		t.TimeUntilEventEnd = minutes(e.End.Sub(s.Now))
		t.TimeUntilEventEndFormatted = w.Duration(t.TimeUntilEventEnd)
		if t.IsEventPrequeueing {
			t.TimeUntilEventStart = minutes(e.Start.Sub(s.Now))
			t.TimeUntilEventStartFormat = w.Duration(t.TimeUntilEventStart)
			t.ShuffleAtEventStart = e.Shuffle
		}
	}
	return t
}

// wait is at least a minute: who is next in the line waits all the same. More than a week
// says nothing.
func wait(d time.Duration) int {
	const week = 7 * 24 * 60
	return min(max(1, minutes(d)), week)
}

// minutes rounds up: nobody is kept longer than the page said for want of half a minute.
func minutes(d time.Duration) int {
	if d <= 0 {
		return 0
	}
	return int(math.Ceil(d.Minutes()))
}

// JSON returns the state as JSON under one key. Its words are English, as those of
// Cloudflare's are: a program reads them.
func (s *State) JSON() []byte {
	text, err := json.Marshal(map[string]Status{"cfWaitingRoom": s.status(spoken.words[0])})
	if err != nil {
		panic(err) // it has no field that could fail
	}
	return append(text, '\n')
}

// A Page is what a renderer makes.
type Page struct {
	HTML     []byte
	Language string // as Content-Language has it
	// Policy is the Content-Security-Policy of the built-in page, "" for a template: it is
	// the operator's, who may want scripts in it.
	Policy string
}

// A Renderer makes pages. Templates are parsed once. It is safe for concurrent use.
type Renderer struct {
	mu     sync.Mutex
	parsed map[string]*mustache.Template
}

// maxParsed is how many templates are kept; rooms have one, events may have another.
const maxParsed = 64

// Render returns the page for a state: of the operator's template where that is not "",
// in the operator's language, else the built-in one in the reader's language as the
// Accept-Language field has it, or that of the room. A template that fails, or makes
// more than ten times what a template may have, gives an error with the built-in page.
func (r *Renderer) Render(s *State, text, acceptLanguage string, fallback language.Tag) (Page, error) {
	var failure error
	if text != "" {
		html, err := r.custom(s, text, fallback)
		if err == nil {
			return Page{HTML: html, Language: fallback.String()}, nil
		}
		failure = err
	}
	return builtIn(s, spoken.choose(acceptLanguage, fallback)), failure
}

func (r *Renderer) custom(s *State, text string, tag language.Tag) ([]byte, error) {
	t, err := r.parse(text)
	if err != nil {
		return nil, err
	}
	encoded, err := json.Marshal(s.status(spoken.choose("", tag)))
	if err != nil {
		return nil, fmt.Errorf("page: %w", err)
	}
	values := map[string]any{}
	if err := json.Unmarshal(encoded, &values); err != nil {
		return nil, fmt.Errorf("page: %w", err)
	}
	for name, v := range values {
		if f, ok := v.(float64); ok {
			values[name] = int(f)
		}
	}
	wait, _ := values["waitTime"].(int)
	values["waitTimeHours"], values["waitTimeHourMinutes"] = wait/60, wait%60
	out := &bounded{left: 10 * config.MaxTemplate}
	if err := t.FRender(out, values); err != nil {
		return nil, fmt.Errorf("page: the template: %w", err)
	}
	return out.Bytes(), nil
}

func (r *Renderer) parse(text string) (*mustache.Template, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if t := r.parsed[text]; t != nil {
		return t, nil
	}
	t, err := config.ParseTemplate(text)
	if err != nil {
		return nil, fmt.Errorf("page: the template: %w", err)
	}
	if len(r.parsed) >= maxParsed || r.parsed == nil {
		r.parsed = map[string]*mustache.Template{}
	}
	r.parsed[text] = t
	return t, nil
}

// bounded is a buffer that refuses more than it has room for.
type bounded struct {
	bytes.Buffer
	left int
}

var errTooLarge = errors.New("makes too large a page")

func (b *bounded) Write(p []byte) (int, error) {
	if b.left -= len(p); b.left < 0 {
		return 0, errTooLarge
	}
	return b.Buffer.Write(p)
}

//go:embed page.html
var builtInText string

var builtInTemplate = template.Must(template.New("page").Parse(builtInText))

// view is what the built-in page shows.
type view struct {
	Status
	*words
	Heading, Lead string
	Label, Value  string // the large figure, "" for none
	Notes         []string
	Checked       string
	Nonce         string
	Refreshes     bool
}

func builtIn(s *State, w *words) Page {
	v := view{Status: s.status(w), words: w, Heading: w.Title, Lead: w.Text, Nonce: rand.Text(), Refreshes: s.Method != config.Reject}
	v.Label, v.Value = w.Wait, w.Unknown
	if v.WaitTimeKnown {
		v.Value = v.WaitTimeFormatted
	}
	switch {
	case v.IsEventPrequeueing:
		v.Heading, v.Label, v.Value = w.Prequeue, w.Starts, v.TimeUntilEventStartFormat
		if v.ShuffleAtEventStart {
			v.Notes = append(v.Notes, w.Shuffle)
		}
	case v.IsRejectQueue:
		v.Heading, v.Lead, v.Label, v.Value = w.Full, w.Later, "", ""
	case v.QueueAll:
		v.Label, v.Value = "", ""
		v.Notes = append(v.Notes, w.Held)
	case v.IsRandomQueue:
		v.Notes = append(v.Notes, w.Random)
	}
	if v.Refreshes {
		v.Notes = append(v.Notes, w.Refresh)
		v.Checked = strings.ReplaceAll(w.Updated, "{t}", s.LastUpdated.UTC().Format("15:04:05")+" UTC")
	}
	var b bytes.Buffer
	if err := builtInTemplate.Execute(&b, v); err != nil {
		panic(err) // embedded, and nothing in it can fail
	}
	return Page{
		HTML: b.Bytes(), Language: w.Tag(),
		// Who may put the page into a frame is not said: rooms are for frames, too.
		Policy: "default-src 'none'; img-src data:; style-src 'nonce-" + v.Nonce + "'; base-uri 'none'; form-action 'none'",
	}
}
