package main

import (
	"fmt"
	"io"
	"text/tabwriter"
)

// A report is what was measured, as printed and as JSON.
type report struct {
	What     string  `json:"what"`
	System   string  `json:"system"`
	Go       string  `json:"go"`
	Cores    int     `json:"cores"`
	Files    int64   `json:"files"` // repeats included
	Bytes    int64   `json:"bytes"`
	Contents int     `json:"contents"` // distinct
	Distinct int64   `json:"distinctBytes"`
	Steps    []step  `json:"steps"`
	Ratios   []ratio `json:"ratios"`
}

// A step is one thing that was timed.
type step struct {
	Name     string  `json:"name"`
	Contents int     `json:"contents"`
	In       int64   `json:"bytesIn"`
	Out      int64   `json:"bytesOut,omitempty"` // as sent: identity where that is no larger
	Seconds  float64 `json:"seconds"`
	CPU      float64 `json:"cpuSeconds"`
	MaxRSS   int64   `json:"maxRSS,omitempty"` // of the largest process, in bytes
}

// A ratio is Larder over something else; at most Budget is wanted.
type ratio struct {
	Name   string  `json:"name"`
	Value  float64 `json:"value"`
	Budget float64 `json:"budget"`
	Met    bool    `json:"met"`
}

func (r *report) describe(c *corpus) {
	r.Files, r.Bytes = c.files, c.bytes
	r.Contents, r.Distinct = len(c.contents), total(c.contents)
}

func (r *report) add(s step) { r.Steps = append(r.Steps, s) }

func (r *report) compare(name string, larder, other, budget float64) {
	if other == 0 {
		return
	}
	value := larder / other
	r.Ratios = append(r.Ratios, ratio{Name: name, Value: value, Budget: budget, Met: value <= budget})
}

func (r *report) print(out io.Writer) {
	fmt.Fprintf(out, "%s\n%s, %s, %d at once\n", r.What, r.System, r.Go, r.Cores)
	fmt.Fprintf(out, "%d files of %.1f MB, of which %d distinct ones of %.1f MB are compressed\n\n",
		r.Files, megabytes(r.Bytes), r.Contents, megabytes(r.Distinct))
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "\tfiles\tMB\tMB after\tof size\tseconds\tCPU seconds\tMB/s a core\tpeak MB\t")
	for _, s := range r.Steps {
		after, share, took, cpu, speed, peak := "", "", "", "", "", ""
		if s.Out > 0 {
			after, share = fmt.Sprintf("%.2f", megabytes(s.Out)), fmt.Sprintf("%.4f", float64(s.Out)/float64(s.In))
		}
		if s.Seconds > 0 {
			took, cpu = fmt.Sprintf("%.1f", s.Seconds), fmt.Sprintf("%.1f", s.CPU)
		}
		if s.CPU > 0 {
			speed = fmt.Sprintf("%.2f", megabytes(s.In)/s.CPU)
		}
		if s.MaxRSS > 0 {
			peak = fmt.Sprintf("%.0f", megabytes(s.MaxRSS))
		}
		fmt.Fprintf(w, "%s\t%d\t%.1f\t%s\t%s\t%s\t%s\t%s\t%s\t\n",
			s.Name, s.Contents, megabytes(s.In), after, share, took, cpu, speed, peak)
	}
	w.Flush()
	fmt.Fprintln(out)
	w = tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "larder against\tratio\tbudget\t\t")
	for _, x := range r.Ratios {
		verdict := "met"
		if !x.Met {
			verdict = "MISSED"
		}
		fmt.Fprintf(w, "%s\t%.4f\t%.2f\t%s\t\n", x.Name, x.Value, x.Budget, verdict)
	}
	w.Flush()
}

func megabytes(n int64) float64 { return float64(n) / 1e6 }
