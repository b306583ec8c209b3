package main

import (
	"context"
	"crypto/sha256"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
)

// sizes are coded lengths by content.
type sizes map[[sha256.Size]byte]int64

// sent returns the bytes that go over the wire for the contents: coded, or
// identity where that is not larger or there is nothing else.
func (s sizes) sent(contents []content) int64 {
	sum := int64(0)
	for _, c := range contents {
		n, ok := s[c.hash]
		if !ok {
			n = c.size
		}
		sum += min(n, c.size)
	}
	return sum
}

// command is a C command that writes what it compressed to standard output.
type command []string

var (
	brotliCommand = command{"brotli", "-q", "11", "-c"}
	gzipCommand   = command{"gzip", "-9", "-n", "-c"}
	zopfliCommand = command{"zopfli", "-c"}
)

// installed says what is missing and how to get it.
func installed(zopfli bool) error {
	for _, c := range []command{brotliCommand, gzipCommand, zopfliCommand} {
		if _, err := exec.LookPath(c[0]); err != nil && (zopfli || c[0] != zopfliCommand[0]) {
			return fmt.Errorf("the command %s is not installed; on Debian and Ubuntu: apt-get install brotli gzip zopfli", c[0])
		}
	}
	return nil
}

// encode runs the command over one content and returns the coded length.
func (c command) encode(ctx context.Context, in content) (int64, error) {
	cmd := exec.CommandContext(ctx, c[0], append(c[1:len(c):len(c)], in.file)...)
	var out counter
	cmd.Stdout, cmd.Stderr = &out, os.Stderr
	if err := cmd.Run(); err != nil {
		return 0, fmt.Errorf("%s %s: %w", c[0], in.file, err)
	}
	return int64(out), nil
}

type counter int64

func (c *counter) Write(p []byte) (int, error) {
	*c += counter(len(p))
	return len(p), nil
}

// measure encodes the contents, jobs at once, and says what that took.
func measure(ctx context.Context, name string, contents []content, jobs int, encode func(context.Context, content) (int64, error)) (sizes, step, error) {
	progress("%s: %d files, %.1f MB", name, len(contents), megabytes(total(contents)))
	coded := make(sizes, len(contents))
	var mu sync.Mutex
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(jobs)
	start, cpu := time.Now(), cpuTime()
	for _, c := range contents {
		g.Go(func() error {
			if err := ctx.Err(); err != nil {
				return err
			}
			n, err := encode(ctx, c)
			if err != nil {
				return err
			}
			mu.Lock()
			defer mu.Unlock()
			coded[c.hash] = n
			return nil
		})
	}
	err := g.Wait()
	return coded, step{
		Name:     name,
		Contents: len(contents),
		In:       total(contents),
		Out:      coded.sent(contents),
		Seconds:  time.Since(start).Seconds(),
		CPU:      (cpuTime() - cpu).Seconds(),
	}, err
}
