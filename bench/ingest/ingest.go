package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/kvstore/coding"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/packages"
)

// compareIngest measures the program against the commands.
func compareIngest(ctx context.Context, o options, tmp string, r *report) error {
	if _, err := os.Stat(o.larder); err != nil {
		return fmt.Errorf("%w; `make build` makes it, -larder names another", err)
	}
	larder, err := filepath.Abs(o.larder)
	if err != nil {
		return err
	}
	catalogue, count, err := writeCatalogue(filepath.Join(tmp, "catalogue"), o.packages)
	if err != nil {
		return err
	}
	cache, err := cacheFolder(o)
	if err != nil {
		return err
	}
	source, err := startRegistry(cache)
	if err != nil {
		return err
	}
	defer source.close()

	p := program{path: larder, env: source.env(tmp)}
	fill := []string{"bot", "--once", "--private-listen", "off", "--catalogue", catalogue, "--releases", strconv.Itoa(o.releases)}
	served, err := p.fill(ctx, tmp, source, fill)
	if err != nil {
		return err
	}
	squeezed, err := p.run(ctx, "larder, squeezed", "squeeze")
	if err != nil {
		return err
	}
	stored, err := readStore(p.data, filepath.Join(tmp, "contents"))
	if err != nil {
		return err
	}
	r.What = fmt.Sprintf("larder bot --once and larder squeeze, from a registry on loopback, against the C commands over the same files: %d packages, %d releases",
		count, stored.releases)
	r.describe(&stored.corpus)
	for _, s := range []*step{&served, &squeezed} {
		s.Contents, s.In = r.Contents, r.Distinct
		r.add(*s)
	}
	contents := sample(stored.contents, o.sample)
	r.add(step{Name: "… Brotli", Contents: len(contents), In: total(contents), Out: stored.brotli.sent(contents)})
	r.add(step{Name: "… gzip", Contents: len(contents), In: total(contents), Out: stored.gzip.sent(contents)})

	c, err := runCommands(ctx, o, contents, r)
	if err != nil {
		return err
	}
	scale := float64(r.Distinct) / float64(total(contents))
	other := (c.brotli.Seconds + c.gzip.Seconds) * scale
	r.compare("time until all is served, brotli -q 11 and gzip -9", served.Seconds, other, 0.1)
	r.compare("time until all is squeezed, the same", served.Seconds+squeezed.Seconds, other, 2)
	r.compare("CPU time until all is squeezed, the same", served.CPU+squeezed.CPU, (c.brotli.CPU+c.gzip.CPU)*scale, 2)
	c.compareBytes(r, stored.brotli, stored.gzip)
	return nil
}

// writeCatalogue writes the starter packages of the given names, or all, as a
// catalogue folder.
func writeCatalogue(folder, names string) (path string, count int, err error) {
	chosen := packages.Starter().Packages()
	if names != "" {
		chosen = nil
		for name := range strings.SplitSeq(names, ",") {
			p, ok := packages.Starter().Get(name)
			if !ok {
				return "", 0, fmt.Errorf("the starter catalogue has no package %q", name)
			}
			chosen = append(chosen, p)
		}
	}
	for _, p := range chosen {
		dir := filepath.Join(folder, "packages", strings.ToLower(p.Name[:1]))
		if err := os.MkdirAll(dir, 0o777); err != nil {
			return "", 0, err
		}
		if err := os.WriteFile(filepath.Join(dir, p.Name+".json"), p.JSON, 0o666); err != nil {
			return "", 0, err
		}
	}
	return folder, len(chosen), nil
}

// A program is a larder with its data folder.
type program struct {
	path string
	env  []string
	data string
}

// fill runs the bot on a fresh data folder, until a run finds everything that it
// asks for in the registry's cache: only such a run is timed.
func (p *program) fill(ctx context.Context, tmp string, source *registry, args []string) (step, error) {
	for try := range 3 {
		p.data = filepath.Join(tmp, fmt.Sprintf("data%d", try))
		before := source.fetched.Load()
		s, err := p.run(ctx, "larder, all served", args...)
		if err != nil {
			return step{}, err
		}
		fetched := source.fetched.Load() - before
		if fetched == 0 {
			return s, nil
		}
		progress("%d things came from the network; once more from the cache", fetched)
		if err := os.RemoveAll(p.data); err != nil {
			return step{}, err
		}
	}
	return step{}, errors.New("the bot asks for something new in every run")
}

// run runs a larder command on the data folder.
func (p *program) run(ctx context.Context, name string, args ...string) (step, error) {
	progress("larder %s", strings.Join(args, " "))
	cmd := exec.CommandContext(ctx, p.path, append(args, "--data", p.data, "--log-level", "warn")...)
	cmd.Env, cmd.Stdout, cmd.Stderr = p.env, os.Stderr, os.Stderr
	start, cpu := time.Now(), cpuTime()
	if err := cmd.Run(); err != nil {
		return step{}, fmt.Errorf("larder %s: %w", args[0], err)
	}
	return step{
		Name:    name,
		Seconds: time.Since(start).Seconds(),
		CPU:     (cpuTime() - cpu).Seconds(),
		MaxRSS:  maxRSS(cmd.ProcessState),
	}, nil
}

// stored is what a data folder holds.
type stored struct {
	corpus
	releases     int
	brotli, gzip sizes
}

// readStore reads what was published and writes each content to a file of its own.
func readStore(data, folder string) (*stored, error) {
	store, err := kvstore.Open(filepath.Join(data, "store"), kvstore.Options{ReadOnly: true})
	if err != nil {
		return nil, err
	}
	defer store.Close()
	if err := os.MkdirAll(folder, 0o777); err != nil {
		return nil, err
	}
	s := &stored{brotli: sizes{}, gzip: sizes{}}
	seen := make(map[kvstore.Hash]bool)
	for e, err := range logs.Entries(store, 0) {
		if err != nil {
			return nil, err
		}
		if !e.Kind.Publishes() {
			continue
		}
		m, err := logs.ReadManifest(store, e.Manifest)
		if err != nil {
			return nil, err
		}
		s.releases++
		for _, f := range m.Files {
			s.files++
			s.bytes += f.Size
			if seen[f.SHA256] || f.Size == 0 {
				continue
			}
			seen[f.SHA256] = true
			if err := s.export(store, f.SHA256, folder); err != nil {
				return nil, err
			}
		}
	}
	if len(s.contents) == 0 {
		return nil, errors.New("nothing was published")
	}
	return s, nil
}

func (s *stored) export(store *kvstore.Store, h kvstore.Hash, folder string) error {
	c, err := store.Content(h)
	if err != nil {
		return err
	}
	for _, r := range c.Representations {
		switch r.Coding {
		case coding.Brotli:
			s.brotli[h] = r.Length
		case coding.Gzip:
			s.gzip[h] = r.Length
		}
	}
	identity, err := store.Identity(h)
	if err != nil {
		return err
	}
	in := content{hash: h, file: filepath.Join(folder, h.String()), size: c.Size}
	s.contents = append(s.contents, in)
	return os.WriteFile(in.file, identity, 0o666)
}
