package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// A report is what was measured, as printed and as JSON.
type report struct {
	System    string   `json:"system"`
	Processor string   `json:"processor,omitempty"`
	Go        string   `json:"go"`
	Rounds    int      `json:"rounds"`
	Seconds   float64  `json:"secondsPerTurn"`
	Quick     bool     `json:"quick,omitempty"`
	Mix       *mix     `json:"mix,omitempty"`
	Scenarios []result `json:"scenarios"`
	More      []string `json:"peersSendMore,omitempty"` // what peers send beyond Larder's answers
}

// A result is that of one scenario.
type result struct {
	Name      string  `json:"name"`
	Protocol  string  `json:"protocol"`
	Body      int     `json:"bodySize,omitempty"` // that the file was chosen for, in bytes
	What      string  `json:"what"`
	Generator string  `json:"generator"`
	Servers   []entry `json:"servers"` // Larder first
	Best      string  `json:"bestNginx"`
	Ratios    []ratio `json:"ratios"`
	Budget    float64 `json:"budget,omitempty"` // for the first of the ratios
	ByCPU     bool    `json:"byCPU,omitempty"`  // whether processor time decides
}

// An entry is what one server did: medians over the rounds.
type entry struct {
	Server  string  `json:"server"`
	Rate    float64 `json:"requestsPerSecond"`
	Spread  float64 `json:"spread"` // between the fastest and the slowest round, as a share of the median
	Bytes   float64 `json:"bytesPerSecond"`
	P50     float64 `json:"p50"` // in microseconds, as the next two
	P99     float64 `json:"p99"`
	CPU     float64 `json:"cpuPerRequest"`
	Busy    float64 `json:"busy"` // share of the server's core that it used
	Load    float64 `json:"loadBusy"`
	PeakRSS int64   `json:"peakRSS"`
	Thrown  int     `json:"thrownAway"` // turns in which the server's core was not busy
}

// A ratio is Larder over something else.
type ratio struct {
	To   string  `json:"to"`
	Rate float64 `json:"requests"`
	CPU  float64 `json:"perCPUSecond"` // the same of what a second of the server's processor time brings
	P99  float64 `json:"p99"`
}

func (r *report) describe(o options) {
	r.System, r.Go = fmt.Sprintf("%s/%s, %d cores", runtime.GOOS, runtime.GOARCH, runtime.NumCPU()), runtime.Version()
	r.Rounds, r.Seconds, r.Quick = o.rounds, o.duration.Seconds(), o.quick
	info, _ := os.ReadFile("/proc/cpuinfo")
	for line := range strings.Lines(string(info)) {
		if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
			r.Processor = strings.TrimSpace(value)
			break
		}
	}
}

func (r *report) tolerate(server string, status int, d difference) {
	server, _, _ = strings.Cut(server, ", ") // nginx's configurations do alike
	said := fmt.Sprintf("%s, in a %d: %s: %s", server, status, d.field, d.text)
	if d.field == "Last-Modified" || d.field == "Content-Length" { // whose values are many
		before, _, _ := strings.Cut(d.text, ",")
		before, _, _ = strings.Cut(before, ":")
		said = fmt.Sprintf("%s, in a %d: %s: %s", server, status, d.field, before)
	}
	if at, found := slices.BinarySearch(r.More, said); !found {
		r.More = slices.Insert(r.More, at, said)
	}
}

// compare sets Larder, which is first, in relation to the others.
func (r *result) compare(p protocol) {
	larder := r.Servers[0]
	add := func(to string, e entry) {
		r.Ratios = append(r.Ratios, ratio{to, over(larder.Rate, e.Rate), over(e.CPU, larder.CPU), over(larder.P99, e.P99)})
	}
	var best entry
	for _, e := range r.Servers {
		better := e.Rate > best.Rate
		if p.byCPU {
			better = best.Server == "" || e.CPU < best.CPU
		}
		if strings.HasPrefix(e.Server, "nginx") && better {
			best = e
		}
	}
	r.Best = best.Server
	add("nginx", best)
	for _, e := range r.Servers[1:] {
		if !strings.HasPrefix(e.Server, "nginx") {
			add(e.Server, e)
		}
	}
	r.ByCPU = p.byCPU
	if p.budget != nil {
		r.Budget = p.budget(r.Body)
	}
}

// noWorse is what a tail may be of nginx's, and pass for as long: that much moves from one run to the next.
const noWorse = 1.1

// sure reports whether the cores of Larder and of the best nginx were busy.
func (r *result) sure() bool {
	return !slices.ContainsFunc(r.Servers, func(e entry) bool {
		return (e.Server == r.Servers[0].Server || e.Server == r.Best) && e.Busy < busyEnough
	})
}

func over(a, b float64) float64 {
	if b == 0 {
		return 0
	}
	return a / b
}

func (r *result) line() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %.0f requests/s", r.Name, r.Servers[0].Rate)
	for _, x := range r.Ratios {
		fmt.Fprintf(&b, ", %.2f of %s", x.Rate, x.To)
	}
	return b.String()
}

func (r *report) write(out io.Writer, o options) error {
	r.print(out)
	if o.json != "" {
		data, err := json.MarshalIndent(r, "", "  ")
		if err != nil {
			return err
		}
		if err := os.WriteFile(o.json, append(data, '\n'), 0o666); err != nil {
			return err
		}
	}
	if o.plot != "" {
		return r.draw(o.plot)
	}
	return nil
}

func (r *report) print(out io.Writer) {
	fmt.Fprintf(out, "%s, %s, %s; %d rounds of %v\n", r.Processor, r.System, r.Go, r.Rounds, time.Duration(r.Seconds*float64(time.Second)))
	if r.Quick {
		fmt.Fprintln(out, "A quick run: that everything works is all that it says.")
	}
	fmt.Fprint(out, "\nLarder over the others in requests a second; over nginx also in requests for a second of processor time, and in p99\n")
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "\tnginx, the best\tbudget\t\tfor CPU\tp99\tlane off\tcaddy\tbare, for CPU\tnginx was\tload\t")
	for _, s := range r.Scenarios {
		budget, verdict := "", ""
		if s.Budget > 0 {
			budget, verdict = fmt.Sprintf("%.2f", s.Budget), "met"
			switch {
			case s.ByCPU && s.Ratios[0].CPU < s.Budget:
				verdict = "MISSED"
			case s.ByCPU && !s.sure():
				verdict += ", for CPU"
			case !s.sure():
				verdict = "unsure"
			case s.Ratios[0].Rate < s.Budget, s.ByCPU && s.Ratios[0].P99 > noWorse:
				verdict = "MISSED"
			}
		}
		bare := ""
		if len(s.Ratios) > 3 {
			bare = fmt.Sprintf("%.2f", s.Ratios[3].CPU)
		}
		fmt.Fprintf(w, "%s\t%.2f\t%s\t%s\t%.2f\t%.2f\t%.2f\t%.2f\t%s\t%s\t%s\t\n", s.Name, s.Ratios[0].Rate, budget, verdict,
			s.Ratios[0].CPU, s.Ratios[0].P99, s.Ratios[1].Rate, s.Ratios[2].Rate, bare, strings.TrimPrefix(s.Best, "nginx, "), s.Generator)
	}
	w.Flush()
	idle := 0
	for _, s := range r.Scenarios {
		fmt.Fprintf(out, "\n%s: %s\n", s.Name, s.What)
		w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
		fmt.Fprintln(w, "\trequests/s\t± %\tMB/s\tp50 µs\tp99 µs\tCPU µs\tbusy %\tload %\tpeak MB\tthrown away\t")
		for _, e := range s.Servers {
			mark := ""
			if e.Busy < busyEnough {
				mark = "*"
				idle++
			}
			fmt.Fprintf(w, "%s\t%.0f\t%.1f\t%.0f\t%.0f\t%.0f\t%.1f\t%.0f%s\t%.0f\t%.0f\t%d\t\n", e.Server, e.Rate, 50*e.Spread, e.Bytes/1e6,
				e.P50, e.P99, e.CPU, 100*e.Busy, mark, 100*e.Load, megabytes(e.PeakRSS), e.Thrown)
		}
		w.Flush()
	}
	if idle > 0 {
		fmt.Fprintf(out, "\n* The server's core was less than %.0f %% busy: something else was the limit, and CPU is what tells.\n", 100*busyEnough)
	}
	if len(r.More) > 0 {
		fmt.Fprintln(out, "\nAnswers are the same in status, body and header fields but Date, the value of ETag, and this, which the peers cannot be told to do otherwise:")
		for _, m := range r.More {
			fmt.Fprintln(out, "  "+m)
		}
	}
}

func megabytes(n int64) float64 { return float64(n) / 1e6 }
