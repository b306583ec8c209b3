package waitingroom

import (
	"bytes"
	"crypto/rand"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"html/template"
	"io"
	"math"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/cbroglie/mustache"
	"golang.org/x/text/language"

	"github.com/larder-cdn/larder/internal/requests"
	"github.com/larder-cdn/larder/server/waitingroom/config"
	"github.com/larder-cdn/larder/server/waitingroom/queue"
)

// pageState is the state of a visitor who has to wait, for the page.
type pageState struct {
	Moment   *config.EffectiveSettings // that are in force in the room
	Decision queue.Decision            // about the visitor: Wait or Refuse
	Now      time.Time
	Down     bool // the site behind the room cannot be reached, so no visitor is admitted
}

// lastUpdated returns when the visitor's place was last checked: at the last check-in, or now for a visitor who is refused.
func (s *pageState) lastUpdated() time.Time {
	if s.Decision.Outcome == queue.Refuse {
		return s.Now
	}
	return s.Decision.Ticket.LastCheckIn
}

// pageStatus is a pageState as JSON and templates have it. The names are those that clients of
// Cloudflare's waiting rooms know. Times are in whole minutes.
type pageStatus struct {
	InWaitingRoom              bool         `json:"inWaitingRoom"`
	WaitTimeKnown              bool         `json:"waitTimeKnown"`
	WaitTime                   int          `json:"waitTime"`
	WaitTime25Percentile       int          `json:"waitTime25Percentile"`
	WaitTime50Percentile       int          `json:"waitTime50Percentile"`
	WaitTime75Percentile       int          `json:"waitTime75Percentile"`
	WaitTimeFormatted          string       `json:"waitTimeFormatted"`
	QueuePosition              int          `json:"queuePosition"` // 0: there is no line, or the place is not known
	UsersAhead                 int          `json:"usersAhead"`
	QueueIsFull                bool         `json:"queueIsFull"`
	QueueAll                   bool         `json:"queueAll"`
	OriginDown                 bool         `json:"originDown,omitempty"` // no visitor is admitted until the site can be reached again
	LastUpdated                pageTime     `json:"lastUpdated"`
	RefreshIntervalSeconds     int          `json:"refreshIntervalSeconds"`
	QueueingMethod             queue.Method `json:"queueingMethod"`
	IsFIFOQueue                bool         `json:"isFIFOQueue"`
	IsRandomQueue              bool         `json:"isRandomQueue"`
	IsPassthroughQueue         bool         `json:"isPassthroughQueue"`
	IsRejectQueue              bool         `json:"isRejectQueue"`
	IsEventActive              bool         `json:"isEventActive"`
	IsEventPrequeueing         bool         `json:"isEventPrequeueing"`
	TimeUntilEventStart        int          `json:"timeUntilEventStart"`
	TimeUntilEventStartFormat  string       `json:"timeUntilEventStartFormatted"`
	TimeUntilEventEnd          int          `json:"timeUntilEventEnd"`
	TimeUntilEventEndFormatted string       `json:"timeUntilEventEndFormatted"`
	ShuffleAtEventStart        bool         `json:"shuffleAtEventStart"`
}

// pageTime is a time as JavaScript's toISOString writes it.
type pageTime time.Time

// String returns the time in UTC, to the millisecond, such as 2027-05-26T19:51:00.000Z.
func (i pageTime) String() string { return time.Time(i).UTC().Format("2006-01-02T15:04:05.000Z") }

// MarshalJSON implements json.Marshaler. It writes the text of String.
func (i pageTime) MarshalJSON() ([]byte, error) { return json.Marshal(i.String()) }

// status returns the visitor's state as JSON and templates have it, with texts in the language of w. A time or place that does
// not apply is 0.
func (s *pageState) status(w *pageWords) pageStatus {
	method, queueAll, estimate := s.Moment.Settings.Method, s.Moment.Settings.QueueAll, &s.Decision.Estimate
	t := pageStatus{
		InWaitingRoom: true, WaitTimeKnown: estimate.Known && !queueAll && !s.Down && s.Decision.Outcome != queue.Refuse, WaitTimeFormatted: w.Unavailable,
		QueueIsFull: method == queue.Reject, OriginDown: s.Down, QueueAll: queueAll && s.Moment.Phase != config.Prequeueing,
		LastUpdated: pageTime(s.lastUpdated()), RefreshIntervalSeconds: int(s.Decision.Ticket.RefreshInterval / time.Second),
		QueueingMethod: method, IsFIFOQueue: method == queue.FIFO, IsRandomQueue: method == queue.Random,
		IsPassthroughQueue: method == queue.Passthrough, IsRejectQueue: method == queue.Reject,
		IsEventActive: s.Moment.Phase == config.EventOn, IsEventPrequeueing: s.Moment.Phase == config.Prequeueing,
	}
	if shuffled := t.IsEventPrequeueing && s.Moment.Event != nil && s.Moment.Event.Shuffle; t.IsFIFOQueue && !shuffled && estimate.Position > 0 {
		t.QueuePosition, t.UsersAhead = estimate.Position, estimate.Ahead
	}
	switch {
	case !t.WaitTimeKnown:
	case t.IsRandomQueue:
		t.WaitTime25Percentile, t.WaitTime50Percentile, t.WaitTime75Percentile = roundWait(estimate.P25), roundWait(estimate.P50), roundWait(estimate.P75)
		t.WaitTime = t.WaitTime50Percentile
		t.WaitTimeFormatted = w.Between(t.WaitTime25Percentile, t.WaitTime75Percentile)
	default:
		t.WaitTime = roundWait(estimate.Minutes)
		t.WaitTimeFormatted = w.Duration(t.WaitTime)
	}
	if e := s.Moment.Event; e != nil {
		t.TimeUntilEventEnd = roundUpMinutes(e.End.Sub(s.Now))
		t.TimeUntilEventEndFormatted = w.Duration(t.TimeUntilEventEnd)
		if t.IsEventPrequeueing {
			t.TimeUntilEventStart = roundUpMinutes(e.Start.Sub(s.Now))
			t.TimeUntilEventStartFormat = w.Duration(t.TimeUntilEventStart)
			t.ShuffleAtEventStart = e.Shuffle
		}
	}
	return t
}

// roundWait rounds an estimated wait in minutes up, from 1 for the next visitor in line to a week, beyond which an estimate means
// nothing. Infinity and NaN become a week.
func roundWait(m float64) int {
	const week = 7 * 24 * 60
	if !(m < week) {
		return week
	}
	return max(1, int(math.Ceil(m-1e-9)))
}

// roundUpMinutes returns a duration in minutes, rounded up, so that no wait is longer than the page says. A negative one becomes
// 0.
func roundUpMinutes(d time.Duration) int { return max(0, int(math.Ceil(d.Minutes()))) }

// JSON returns the visitor's state as JSON under the key cfWaitingRoom, and a line end. Its texts are English, as those of
// Cloudflare's are: a program reads them.
func (s *pageState) JSON() []byte {
	return append(marshalState(map[string]pageStatus{"cfWaitingRoom": s.status(parsedLanguages().words[0])}), '\n')
}

// marshalState returns a visitor's state as JSON. No field of it can fail.
func marshalState(v any) []byte {
	text, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return text
}

// Place returns the visitor's place in line and wait as JSON on one line, for an event of an event stream. The wait is also a
// text in the language of w.
func (s *pageState) Place(w *pageWords) []byte {
	t := s.status(w)
	return marshalState(struct {
		Place  int    `json:"queuePosition"`
		Ahead  int    `json:"usersAhead"`
		Known  bool   `json:"waitTimeKnown"`
		Wait   int    `json:"waitTime"`
		Format string `json:"waitTimeFormatted"`
	}{t.QueuePosition, t.UsersAhead, t.WaitTimeKnown, t.WaitTime, t.WaitTimeFormatted})
}

// A waitingPage is a rendered page.
type waitingPage struct {
	HTML     []byte
	Language string // as Content-Language has it
	// Policy is the Content-Security-Policy of the built-in page, "" for a template, in
	// which the operator may want scripts.
	Policy string
}

// setHeader sets the header fields that describe the page.
func (p *waitingPage) setHeader(h http.Header) {
	h.Set("Content-Type", "text/html; charset=utf-8")
	h.Set("Content-Language", p.Language)
	if p.Policy != "" {
		h.Set("Content-Security-Policy", p.Policy)
	}
}

// A pageRenderer makes pages. Templates are parsed once. It is safe for concurrent use.
type pageRenderer struct {
	mu     sync.Mutex
	parsed map[string]*mustache.Template
}

// maxParsedTemplates is how many templates are kept; rooms have one, events may have another.
const maxParsedTemplates = 64

// Render returns the waiting page for a visitor's state: the operator's template if the settings have one, in the fallback
// language, else the built-in page in the language of the Accept-Language field, or the fallback. If the template fails, or its
// page is more than ten times as large as a template may be, Render returns both the built-in page and an error.
func (r *pageRenderer) Render(s *pageState, acceptLanguage string, fallback language.Tag) (waitingPage, error) {
	var failure error
	if s.Moment.Template != "" {
		var html []byte
		if html, failure = r.renderCustom(s, fallback); failure == nil {
			return waitingPage{HTML: html, Language: fallback.String()}, nil
		}
	}
	return renderBuiltInPage(s, parsedLanguages().choose(acceptLanguage, fallback)), failure
}

// renderCustom returns the page of the operator's own template, with texts in the language of tag. It fails if the template does,
// or if the page is too large (errPageTooLarge).
func (r *pageRenderer) renderCustom(s *pageState, tag language.Tag) ([]byte, error) {
	t, err := r.parse(s.Moment.Template)
	if err != nil {
		return nil, err
	}
	values := map[string]any{}
	if err := json.Unmarshal(marshalState(s.status(parsedLanguages().choose("", tag))), &values); err != nil {
		return nil, fmt.Errorf("page: %w", err)
	}
	for name, v := range values {
		if f, ok := v.(float64); ok {
			values[name] = int(f)
		}
	}
	wait, _ := values["waitTime"].(int)
	values["waitTimeHours"], values["waitTimeHourMinutes"] = wait/60, wait%60
	out := &boundedBuffer{left: 10 * config.MaxTemplate}
	if err := t.FRender(out, values); err != nil {
		return nil, fmt.Errorf("page: the template: %w", err)
	}
	return out.Bytes(), nil
}

// parse parses the text of a template, and caches the result. It empties the cache if that has maxParsedTemplates.
func (r *pageRenderer) parse(text string) (*mustache.Template, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if t := r.parsed[text]; t != nil {
		return t, nil
	}
	t, err := config.ParseTemplate(text)
	if err != nil {
		return nil, fmt.Errorf("page: the template: %w", err)
	}
	if len(r.parsed) >= maxParsedTemplates || r.parsed == nil {
		r.parsed = map[string]*mustache.Template{}
	}
	r.parsed[text] = t
	return t, nil
}

// boundedBuffer is a buffer of limited size.
type boundedBuffer struct {
	bytes.Buffer
	left int
}

var errPageTooLarge = errors.New("makes too large a page")

// Write implements io.Writer. If p exceeds the limit of all bytes together, it writes nothing of p and returns errPageTooLarge.
func (b *boundedBuffer) Write(p []byte) (int, error) {
	if b.left -= len(p); b.left < 0 {
		return 0, errPageTooLarge
	}
	return b.Buffer.Write(p)
}

//go:embed page.html
var builtInPage string

// builtInTemplate returns the template of the built-in page. It parses the embedded file at the first call.
var builtInTemplate = sync.OnceValue(func() *template.Template { return template.Must(template.New("page").Parse(builtInPage)) })

// pageView is the data of the built-in page.
type pageView struct {
	pageStatus
	*pageWords
	Heading, Lead string
	Room          string       // its name
	Figures       []pageFigure // the first is the large one
	Notes         []string
	Checked       template.HTML
	Nonce         string
	Refreshes     bool
}

// A pageFigure is a value that the page shows under its label.
type pageFigure struct {
	Label, Value string
	Key          string        // of the value in the events of a stream, "" for none
	At           template.HTML // the time of what the value counts down to, "" for none
}

// renderBuiltInPage returns the built-in page for a visitor in a state, in the language of w.
func renderBuiltInPage(s *pageState, w *pageWords) waitingPage {
	v := &pageView{pageStatus: s.status(w), pageWords: w, Heading: w.Title, Lead: w.Text, Room: s.Moment.Room, Nonce: rand.Text(), Refreshes: s.Moment.Settings.Method != queue.Reject}
	wait := pageFigure{Label: w.Wait, Value: w.Unknown, Key: "waitTimeFormatted"}
	if v.WaitTimeKnown {
		wait.Value = v.WaitTimeFormatted
	}
	switch {
	case v.IsEventPrequeueing:
		v.Heading = w.Prequeue
		v.Figures = append(v.Figures, pageFigure{w.Starts, v.TimeUntilEventStartFormat, "", markUpTime(s.Moment.Event.Start, "2006-01-02 15:04")})
		if v.ShuffleAtEventStart {
			v.Notes = append(v.Notes, w.Shuffle)
		}
	case v.IsRejectQueue:
		v.Heading, v.Lead = w.Full, w.Later
	case v.OriginDown:
		v.Notes = append(v.Notes, w.Down, w.Held)
	case v.QueueAll:
		v.Notes = append(v.Notes, w.Held)
	case v.IsRandomQueue:
		v.Figures = append(v.Figures, wait)
		v.Notes = append(v.Notes, w.Random)
	default:
		v.Figures = append(v.Figures, wait)
	}
	if v.QueuePosition > 0 {
		v.Figures = append(v.Figures, pageFigure{Label: w.Place, Value: groupThousands(v.QueuePosition), Key: "queuePosition"}, pageFigure{Label: w.Ahead, Value: groupThousands(v.UsersAhead), Key: "usersAhead"})
	}
	if v.Refreshes {
		v.Notes = append(v.Notes, w.Refresh)
		before, after, _ := strings.Cut(w.Updated, "{t}")
		v.Checked = template.HTML(template.HTMLEscapeString(before)) + markUpTime(s.lastUpdated(), time.TimeOnly) + template.HTML(template.HTMLEscapeString(after)) //nolint:gosec // escaped
	}
	return v.render()
}

// render executes the template of the built-in page with the data of v.
func (v *pageView) render() waitingPage {
	var b bytes.Buffer
	if err := builtInTemplate().Execute(&b, v); err != nil {
		panic(err) // embedded, and nothing in it can fail
	}
	return waitingPage{
		HTML: b.Bytes(), Language: v.Tag(),
		// It allows framing: rooms may be shown in frames of other sites.
		Policy: "default-src 'none'; img-src data:; style-src 'nonce-" + v.Nonce + "'; script-src 'nonce-" + v.Nonce + "'; connect-src 'self'; base-uri 'none'; form-action 'none'",
	}
}

// unreachablePage returns the page for a visitor who is in, while the site cannot be reached. It refreshes itself if the caller sends
// the header field Refresh.
func unreachablePage(acceptLanguage string, fallback language.Tag, now time.Time) waitingPage {
	w := parsedLanguages().choose(acceptLanguage, fallback)
	v := &pageView{pageWords: w, Heading: w.Down, Lead: w.Refresh, Nonce: rand.Text()}
	return v.render()
}

// markUpTime returns the HTML of a time in UTC, formatted by layout. The page's script converts it to the reader's time zone.
func markUpTime(t time.Time, layout string) template.HTML {
	t = t.UTC()
	return template.HTML(`<time dir="auto" datetime="` + pageTime(t).String() + `">` + t.Format(layout) + ` UTC</time>`) //nolint:gosec // it has digits only
}

// groupThousands returns a number with narrow no-break spaces between groups of three digits, which readers of every language
// understand. Numbers below 10,000 have none.
func groupThousands(n int) string {
	digits := strconv.Itoa(n)
	if len(digits) < 5 {
		return digits
	}
	for i := len(digits) - 3; i > 0; i -= 3 {
		digits = digits[:i] + "\u202f" + digits[i:]
	}
	return digits
}

// A pageForm is a form of the response to a waiting client.
type pageForm uint8

// The forms.
const (
	formNeither pageForm = iota // the client can show nothing
	formHTML
	formJSON
)

// pageFormOf returns in which form a client with these lines of the Accept field (RFC 9110 §12.5.1) gets the waiting page. json
// says that the room also has JSON. Only types that the field names count: a script tag or a command-line client accepts */* and
// displays no page. Of both forms the one with the higher weight is chosen, the page if they are equal.
func pageFormOf(lines []string, json bool) pageForm {
	html, object := requests.MediaQuality(lines, "text/html"), requests.MediaQuality(lines, "application/json")
	switch {
	case json && object > 0 && object > html:
		return formJSON
	case html > 0:
		return formHTML
	}
	return formNeither
}

// A PagePreview is the page of a room before it is live.
type PagePreview struct {
	Template string // path of a file; "" for the built-in page
	Method   string // fifo, random or reject
	Language language.Tag
	QueueAll bool // as if no user were admitted
	Event    bool // as if an event started in half an hour
}

// HTML returns the preview: the waiting page with example values. It fails if the template cannot be read or is not valid. If the
// template fails with the values, it returns both the built-in page and an error.
func (p PagePreview) HTML(now time.Time) ([]byte, error) {
	moment := config.EffectiveSettings{Settings: queue.Settings{Method: queue.Method(p.Method), QueueAll: p.QueueAll}}
	if p.Template != "" {
		var err error
		if moment.Template, err = readPageTemplate(p.Template); err != nil {
			return nil, err
		}
	}
	if p.Event {
		moment.Phase, moment.Event = config.Prequeueing, &config.Event{Start: now.Add(30 * time.Minute), End: now.Add(2 * time.Hour), Shuffle: true}
	}
	state := pageState{Moment: &moment, Now: now, Decision: queue.Decision{
		Ticket:   queue.Ticket{LastCheckIn: now, RefreshInterval: 20 * time.Second},
		Estimate: queue.Estimate{Known: moment.Settings.Method != queue.Reject, Position: 301, Ahead: 300, Minutes: 10, P25: 5, P50: 10, P75: 15},
	}}
	made, err := new(pageRenderer).Render(&state, "", p.Language)
	return made.HTML, err
}

// readPageTemplate reads a template from a file. It fails if the template is too large, empty or not valid.
func readPageTemplate(file string) (string, error) {
	f, err := os.Open(file)
	if err != nil {
		return "", err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, config.MaxTemplate+1))
	if err != nil {
		return "", err
	}
	if err := config.CheckTemplate(string(text)); err != nil {
		return "", fmt.Errorf("%s %w", file, err)
	}
	return string(text), nil
}
