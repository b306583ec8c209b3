package main

import (
	"context"
	"fmt"
	"os"

	"github.com/larder-cdn/larder/kvstore/coding"
)

// compareEncoders measures the encoders in this process against the commands.
func compareEncoders(ctx context.Context, o options, r *report) error {
	all, err := readCorpus(o.corpus)
	if err != nil {
		return err
	}
	r.What = "Larder's encoders, which decode and compare what they made, against the C commands, one process a file"
	r.describe(all)
	contents := sample(all.contents, o.sample)
	if len(contents) == 0 {
		return fmt.Errorf("no files to compress in %s", o.corpus)
	}

	own := func(name string, c coding.Coding, e coding.Effort) (sizes, step, error) {
		coded, s, err := measure(ctx, name, contents, o.jobs, func(_ context.Context, in content) (int64, error) {
			data, err := os.ReadFile(in.file)
			if err != nil {
				return 0, err
			}
			out, err := coding.Encode(c, e, data)
			return int64(len(out)), err
		})
		r.add(s)
		return coded, s, err
	}
	_, quickBrotli, err := own("larder, Brotli, quick", coding.Brotli, coding.Quick)
	if err != nil {
		return err
	}
	_, quickGzip, err := own("larder, gzip, quick", coding.Gzip, coding.Quick)
	if err != nil {
		return err
	}
	brotli, bestBrotli, err := own("larder, Brotli, best", coding.Brotli, coding.Best)
	if err != nil {
		return err
	}
	gzip, bestGzip, err := own("larder, gzip, best", coding.Gzip, coding.Best)
	if err != nil {
		return err
	}
	c, err := runCommands(ctx, o, contents, r)
	if err != nil {
		return err
	}
	r.compare("CPU time of quick codings, brotli -q 11 and gzip -9", quickBrotli.CPU+quickGzip.CPU, c.brotli.CPU+c.gzip.CPU, 0.1)
	r.compare("CPU time of best codings, brotli -q 11 and gzip -9", bestBrotli.CPU+bestGzip.CPU, c.brotli.CPU+c.gzip.CPU, 2)
	c.compareBytes(r, brotli, gzip)
	return nil
}

// commands are the C commands' results over the same contents.
type commands struct {
	contents     []content
	brotli, gzip step

	brotliSizes, gzipSizes, zopfliSizes sizes

	zopfliContents []content
}

func runCommands(ctx context.Context, o options, contents []content, r *report) (*commands, error) {
	c := &commands{contents: contents}
	var err error
	if c.brotliSizes, c.brotli, err = measure(ctx, "brotli -q 11", contents, o.jobs, brotliCommand.encode); err != nil {
		return nil, err
	}
	r.add(c.brotli)
	if c.gzipSizes, c.gzip, err = measure(ctx, "gzip -9", contents, o.jobs, gzipCommand.encode); err != nil {
		return nil, err
	}
	r.add(c.gzip)
	if o.zopfli == 0 {
		return c, nil
	}
	c.zopfliContents = sample(contents, o.sample*o.zopfli)
	var s step
	if c.zopfliSizes, s, err = measure(ctx, "zopfli", c.zopfliContents, o.jobs, zopfliCommand.encode); err != nil {
		return nil, err
	}
	r.add(s)
	return c, nil
}

// compareBytes compares what is sent for the same contents.
func (c *commands) compareBytes(r *report, brotli, gzip sizes) {
	r.compare("bytes of brotli -q 11", float64(brotli.sent(c.contents)), float64(c.brotliSizes.sent(c.contents)), 1)
	r.compare("bytes of gzip -9", float64(gzip.sent(c.contents)), float64(c.gzipSizes.sent(c.contents)), 0.99)
	if len(c.zopfliContents) > 0 {
		r.compare("bytes of zopfli", float64(gzip.sent(c.zopfliContents)), float64(c.zopfliSizes.sent(c.zopfliContents)), 1.05)
	}
}
