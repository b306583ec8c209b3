//go:build linux

package main

import (
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"text/tabwriter"
	"time"
)

// A report is what a run found.
type report struct {
	title    string
	packages int
	whole    float64 // packages of the whole catalogue for each of these
	status   status
	steps    []step

	received int64 // over the network
	disk     int64 // what the store takes
	before   int64 // bytes that had their best compression when squeezing began
	stored
}

// A stored is what the store holds.
type stored struct {
	published       int   // releases
	files, contents int   // with and without repeats
	bytes, distinct int64 // of them
	squeezed        int64 // bytes of those that have their best compression
	brotli, gzip    int64 // what clients get of the contents
}

// A step is one command that ran.
type step struct {
	name      string
	wall, cpu time.Duration
	peak      int64 // memory of its largest process, in bytes
}

func (r *report) print(out io.Writer) error {
	fmt.Fprintf(out, "\n%s\n\n", r.title)
	var served, refused, failed, waiting int
	for _, p := range r.status.Packages {
		if p.Published > 0 {
			served++
		}
		refused, failed, waiting = refused+p.Refused, failed+p.Failed, waiting+p.Waiting
	}
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	row := func(name, here, whole string) { fmt.Fprintf(t, "%s\t%s\t%s\t\n", name, here, whole) }
	count := func(name string, n int) { row(name, fmt.Sprint(n), fmt.Sprintf("%.0f", float64(n)*r.whole)) }
	size := func(name string, n int64) {
		row(name, megabytes(float64(n)), megabytes(float64(n)*r.whole))
	}
	row("", "here", "the whole catalogue")
	count("packages", r.packages)
	count("packages with a release", served)
	count("releases published", r.published)
	count("releases refused", refused)
	count("releases failed", failed)
	if waiting > 0 {
		count("releases that wait", waiting)
	}
	count("files", r.files)
	count("distinct files", r.contents)
	if r.received > 0 {
		size("received over the network", r.received)
	}
	size("files, bytes", r.bytes)
	size("distinct files, bytes", r.distinct)
	size("… at their best compression", r.squeezed)
	size("… in Brotli", r.brotli)
	size("… in gzip", r.gzip)
	size("store on the disk", r.disk)
	for i, s := range r.steps {
		whole := r.whole
		if done := r.squeezed - r.before; i > 0 && done > 0 { // some of the files may have been left
			whole *= float64(r.distinct-r.before) / float64(done)
		}
		row(s.name+", processor time", seconds(s.cpu, 1), seconds(s.cpu, whole))
		row(s.name+", time", seconds(s.wall, 1), seconds(s.wall, whole))
		row(s.name+", peak memory of a process", megabytes(float64(s.peak)), "")
	}
	if err := t.Flush(); err != nil {
		return err
	}
	fmt.Fprintf(out, "\nWhat was not published, by cause:\n\n")
	t = tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	for _, problem := range r.status.Problems {
		fmt.Fprintf(t, "%d\t%s\t%s\t%v\n", problem.Count, problem.Kind, problem.Cause, problem.Packages[:min(3, len(problem.Packages))])
	}
	return t.Flush()
}

func megabytes(n float64) string {
	if n >= 1e10 {
		return fmt.Sprintf("%.1f GB", n/1e9)
	}
	return fmt.Sprintf("%.1f MB", n/1e6)
}

func seconds(d time.Duration, times float64) string {
	s := d.Seconds() * times
	switch {
	case s < 600:
		return fmt.Sprintf("%.0f s", s)
	case s < 36_000:
		return fmt.Sprintf("%.0f min", s/60)
	}
	return fmt.Sprintf("%.1f h", s/3600)
}

// sizeOf adds up the files of a folder.
func sizeOf(folder string) (int64, error) {
	sum := int64(0)
	err := filepath.WalkDir(folder, func(_ string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		info, err := d.Info()
		if err == nil {
			sum += info.Size()
		}
		return err
	})
	return sum, err
}
