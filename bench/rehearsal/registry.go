package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/larder-cdn/larder/internal/testkit/npmtest"
)

const (
	// faultEvery is how often the registry begins to misbehave, and faultLasts for how long.
	faultEvery = 10 * time.Second
	faultLasts = 3 * time.Second
	// poisonShare is the share of releases with an integrity that is not theirs.
	poisonShare = 0.04
)

// A registry releases, and misbehaves.
type registry struct {
	*npmtest.Registry
	moduleRegistry
	library *library
	random  *rand.Rand
	next    [packages]int // the minor version to come
	every   time.Duration
}

func newRegistry(l *library, seed uint64, every time.Duration) *registry {
	r := &registry{Registry: npmtest.Start(), library: l, random: rand.New(rand.NewPCG(seed, 2)), every: every}
	for i := range packages {
		for range 3 {
			r.publish(i, false)
		}
	}
	r.publishModules()
	r.publishModules()
	return r
}

// publish releases the next version of a package.
func (r *registry) publish(i int, poisoned bool) *release {
	x := &release{pkg: packageName(i), version: fmt.Sprintf("1.%d.0", r.next[i]), poisoned: poisoned}
	r.next[i]++
	r.library.add(x)
	var options []npmtest.Option
	if poisoned {
		options = append(options, npmtest.Dist("integrity", "sha512-"+string(base64Of(64))))
	}
	r.Add(x.pkg, x.version, time.Now(), x.contents(), options...)
	return x
}

// base64Of is n bytes that are all 0.
func base64Of(n int) []byte {
	b := make([]byte, (n+2)/3*4)
	for i := range b {
		b[i] = 'A'
	}
	for i := range (3 - n%3) % 3 {
		b[len(b)-1-i] = '='
	}
	return b
}

// faults are how it misbehaves, each for a tarball, a packument or all.
var faults = []npmtest.Fault{
	{Status: 500}, {Status: 429, RetryAfter: "1"}, {Hang: true, Times: 2}, {Truncate: true, Times: 4}, {Garble: true, Times: 4}, {Silent: true, Times: 2}, {Reset: true, Times: 4}, {Drip: true, Times: 1},
}

// run releases and misbehaves until the context ends, and mends itself then.
func (r *registry) run(ctx context.Context) (published, poisoned, faulty int) {
	releases, fault := time.NewTicker(r.every), time.NewTicker(faultEvery)
	defer releases.Stop()
	defer fault.Stop()
	defer r.ClearFaults()
	for {
		select {
		case <-ctx.Done():
			return published, poisoned, faulty
		case <-releases.C:
			bad := r.random.Float64() < poisonShare
			r.publish(r.random.IntN(packages), bad)
			if bad {
				poisoned++
			} else {
				published++
			}
			if (published+poisoned)%modulesEvery == 0 {
				r.publishModules()
			}
		case <-fault.C:
			f := faults[r.random.IntN(len(faults))]
			f.Path = []string{"/", "/" + packageName(r.random.IntN(packages)), "/_changes"}[r.random.IntN(3)]
			r.Fail(f)
			faulty++
			time.AfterFunc(faultLasts, r.ClearFaults)
		}
	}
}
