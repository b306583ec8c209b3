package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// A turn is what a load generator saw of one server.
type turn struct {
	Requests int64         `json:"requests"`
	Bytes    int64         `json:"bytes"` // head and body
	Took     time.Duration `json:"took"`
	P50      time.Duration `json:"p50"`
	P99      time.Duration `json:"p99"`
}

var errLoad = errors.New("the load generator reports failures")

// wrk's lines.
var (
	wrkTotal   = regexp.MustCompile(`(?m)^\s*(\d+) requests in ([\d.]+\w+), ([\d.]+\w+) read\s*$`)
	wrkPercent = regexp.MustCompile(`(?m)^\s*(\d+)%\s+([\d.]+\w+)[ \t]*$`)
	wrkErrors  = regexp.MustCompile(`(?m)^\s*(Socket errors: .*|Non-2xx or 3xx responses: .*)$`)
)

// parseWrk reads what `wrk --latency` prints.
func parseWrk(text string) (turn, error) {
	var t turn
	if m := wrkErrors.FindString(text); m != "" {
		return t, fmt.Errorf("%w: wrk: %s", errLoad, strings.TrimSpace(m))
	}
	total := wrkTotal.FindStringSubmatch(text)
	if total == nil {
		return t, fmt.Errorf("unexpected output of wrk: %q", text)
	}
	var err1, err2, err3 error
	t.Requests, err1 = strconv.ParseInt(total[1], 10, 64)
	t.Took, err2 = parseTime(total[2])
	t.Bytes, err3 = parseBytes(total[3])
	if err := errors.Join(err1, err2, err3); err != nil {
		return t, fmt.Errorf("unexpected output of wrk: %w", err)
	}
	if t.Requests == 0 {
		return t, fmt.Errorf("%w: wrk got no answer", errLoad)
	}
	for _, m := range wrkPercent.FindAllStringSubmatch(text, -1) {
		d, err := parseTime(m[2])
		if err != nil {
			return t, fmt.Errorf("unexpected output of wrk: %w", err)
		}
		switch m[1] {
		case "50":
			t.P50 = d
		case "99":
			t.P99 = d
		}
	}
	if t.P50 == 0 || t.P99 == 0 || t.Took == 0 {
		return t, fmt.Errorf("wrk tells no latencies: %q", text)
	}
	return t, nil
}

// parseTime reads wrk's times: 12.34us, 1.20ms, 2.00s, 1.05m.
func parseTime(s string) (time.Duration, error) {
	d, err := time.ParseDuration(s)
	if err != nil {
		return 0, fmt.Errorf("%q is no time", s)
	}
	return d, nil
}

// parseBytes reads sizes such as 1.20GB, whose units are powers of 1024.
func parseBytes(s string) (int64, error) {
	number := strings.TrimRight(s, "KMGTB")
	x, err := strconv.ParseFloat(number, 64)
	shift, ok := map[string]float64{"B": 1, "KB": 1 << 10, "MB": 1 << 20, "GB": 1 << 30, "TB": 1 << 40}[s[len(number):]]
	if err != nil || !ok {
		return 0, fmt.Errorf("%q is no size", s)
	}
	return int64(x * shift), nil
}

// h2load's lines.
var (
	h2Finished = regexp.MustCompile(`(?m)^finished in ([\d.]+\w+), `)
	h2Requests = regexp.MustCompile(`(?m)^requests: \d+ total, \d+ started, (\d+) done, (\d+) succeeded, (\d+) failed, (\d+) errored, (\d+) timeout$`)
	h2Codes    = regexp.MustCompile(`(?m)^status codes: \d+ 2xx, (\d+) 3xx, (\d+) 4xx, (\d+) 5xx$`)
	h2Traffic  = regexp.MustCompile(`(?m)^traffic: \S+ \((\d+)\) total, .*, \S+ \((\d+)\) data$`)
)

// parseH2load reads what h2load prints, and the log of all requests that it wrote, if it wrote one. Where each answer's body has that
// many bytes, the requests are as many as bytes have come for: many streams of large files may end together, and after the turn.
func parseH2load(text string, log []byte, body int) (turn, error) {
	var t turn
	finished, requests := h2Finished.FindStringSubmatch(text), h2Requests.FindStringSubmatch(text)
	codes, traffic := h2Codes.FindStringSubmatch(text), h2Traffic.FindStringSubmatch(text)
	if finished == nil || requests == nil || codes == nil || traffic == nil {
		return t, fmt.Errorf("unexpected output of h2load: %q", text)
	}
	if requests[3] != "0" || requests[4] != "0" || requests[5] != "0" {
		return t, fmt.Errorf("%w: h2load: %s", errLoad, requests[0])
	}
	var err1, err2, err3 error
	t.Took, err1 = parseTime(finished[1])
	t.Requests, err2 = strconv.ParseInt(requests[2], 10, 64)
	t.Bytes, err3 = strconv.ParseInt(traffic[1], 10, 64)
	if err := errors.Join(err1, err2, err3); err != nil {
		return t, fmt.Errorf("unexpected output of h2load: %w", err)
	}
	if body > 0 {
		data, err := strconv.ParseInt(traffic[2], 10, 64)
		if err != nil {
			return t, fmt.Errorf("unexpected output of h2load: %w", err)
		}
		t.Requests = data / int64(body)
	}
	if t.Requests == 0 || t.Took == 0 {
		return t, fmt.Errorf("%w: h2load made no requests", errLoad)
	}
	if codes[1] != "0" || codes[2] != "0" || codes[3] != "0" {
		return t, fmt.Errorf("%w: h2load: %s", errLoad, codes[0])
	}
	if log == nil {
		return t, nil
	}
	var took []int64
	for line := range bytes.Lines(log) {
		fields := strings.Fields(string(line))
		if len(fields) < 3 {
			return t, fmt.Errorf("unexpected line in h2load's log: %q", line)
		}
		if fields[1] != "200" {
			return t, fmt.Errorf("%w: h2load saw status %s", errLoad, fields[1])
		}
		us, err := strconv.ParseInt(fields[2], 10, 64)
		if err != nil {
			return t, fmt.Errorf("unexpected line in h2load's log: %q", line)
		}
		took = append(took, us)
	}
	if len(took) == 0 {
		return t, fmt.Errorf("%w: h2load logged no requests", errLoad)
	}
	slices.Sort(took)
	t.P50, t.P99 = percentile(took, 50), percentile(took, 99)
	return t, nil
}

// percentile is of sorted microseconds.
func percentile[T int64 | uint32](sorted []T, p int) time.Duration {
	return time.Duration(sorted[len(sorted)*p/100]) * time.Microsecond
}

// median is the middle one, or the mean of the two in the middle.
func median(values []float64) float64 {
	if len(values) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(values))
	return (sorted[(len(sorted)-1)/2] + sorted[len(sorted)/2]) / 2
}

// arguments are the browser's fields as -H of wrk and h2load.
func arguments(closing bool) []string {
	var args []string
	for _, field := range browser {
		args = append(args, "-H", field[0]+": "+field[1])
	}
	if closing {
		args = append(args, "-H", "Connection: close")
	}
	return args
}

func readAndRemove(name string) ([]byte, error) {
	data, err := os.ReadFile(name)
	return data, errors.Join(err, os.Remove(name))
}

// leanArgument makes this program the load generator of our own.
const leanArgument = "lean-load"

// A leanJob is what that one is to do, over plain HTTP/1.1.
type leanJob struct {
	Address     string
	Requests    [][]byte
	Lengths     []int   // of the answers, head and body
	Order       []int32 // indexes of the two, from the first to the last and again
	Connections int
	Duration    time.Duration
	Closing     bool   // a new connection for each request, which the server closes
	Streams     int    // over HTTP/2 and TLS, on each connection; requests are header blocks then, lengths those of bodies
	First       []byte // header block of each connection's first request over HTTP/2
	Handshakes  string // over TLS, with a new connection for each request, whose session is new or resumed
}

// The values of leanJob.Handshakes.
const (
	inFull  = "in full"
	resumed = "resumed"
)

func decodeTurn(text string) (turn, error) {
	var t turn
	if err := json.Unmarshal([]byte(text), &t); err != nil {
		return t, fmt.Errorf("unexpected output of the load generator: %q", text)
	}
	if t.Requests == 0 { // also where a busy machine has not let the server run in a short turn
		return t, fmt.Errorf("%w: no request was answered", errLoad)
	}
	return t, nil
}
