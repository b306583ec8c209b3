package bucket

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"sync"

	"golang.org/x/sync/errgroup"
)

// An UnfitError says that a store does not keep what a [Bucket] promises, so that two writers could
// both believe that they have won.
type UnfitError struct {
	Bucket string // what the bucket is called
	Broken string // the promise that was seen broken
}

// Error returns which bucket cannot be used, why, and what a cluster needs.
func (e *UnfitError) Error() string {
	return fmt.Sprintf("%s cannot be used: %s. A cluster needs a store whose conditional writes (If-None-Match: * and If-Match) hold when several clients write at once; see docs/cluster.md", e.Bucket, e.Broken)
}

// How hard a store is probed. A gateway that lets two writers win 6 of 100 competitions passes this
// once in 100,000 times.
const (
	probeRounds  = 96
	probeAtOnce  = 32 // rounds that run beside one another
	probeWriters = 4

	// The kernel decides between writers in a folder. A few rounds show that its file system has links and locks.
	folderProbeRounds = 4
)

// Probe checks that a bucket keeps its promises: it has competing writers create and replace objects below probe/, which it deletes again. It returns
// an [UnfitError] if two of them succeed or none does, a condition is ignored, a version is given to different bytes, or an object has other bytes
// than those written. Another error is that of a request that failed, or says that the store decided nothing between writers in many attempts.
func Probe(ctx context.Context, b Bucket) error {
	run := "probe/" + rand.Text() + "/"
	first := run + "first"
	if _, err := b.Create(ctx, first, []byte("1")); err != nil {
		return err
	}
	defer b.Delete(context.WithoutCancel(ctx), first) //nolint:errcheck // a leftover of a few bytes
	if _, err := b.Create(ctx, first, []byte("2")); err == nil {
		return &UnfitError{b.String(), "it created an object that was there already (If-None-Match: * is ignored)"}
	} else if !errors.Is(err, ErrExists) {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(probeAtOnce)
	rounds := probeRounds
	if _, ok := b.(interface{ decidedByKernel() }); ok {
		rounds = folderProbeRounds
	}
	for round := range rounds {
		if ctx.Err() != nil {
			break
		}
		group.Go(func() error { return probeOnce(ctx, b, fmt.Sprintf("%s%d", run, round)) })
	}
	return group.Wait()
}

// probeOnce does one round of [Probe]: competing writers create the object with this key, then replace it, and a late writer must fail to replace the
// old version. It deletes the object at the end.
func probeOnce(ctx context.Context, b Bucket, key string) error {
	defer b.Delete(context.WithoutCancel(ctx), key) //nolint:errcheck // a leftover of a few bytes
	created, err := raceWriters(ctx, b, key, func(data []byte) (Version, error) { return b.Create(ctx, key, data) })
	if err != nil {
		return err
	}
	replaced, err := raceWriters(ctx, b, key, func(data []byte) (Version, error) { return b.Replace(ctx, key, data, created) })
	if err == nil && replaced == created {
		err = &UnfitError{b.String(), "it gives one version to different bytes"}
	}
	if err != nil {
		return err
	}
	if _, err := b.Replace(ctx, key, []byte("late"), created); err == nil {
		return &UnfitError{b.String(), "it replaced a version that was gone (If-Match is ignored)"}
	} else if !errors.Is(err, ErrChanged) {
		return err
	}
	return nil
}

// busyRounds is how often a store may decide nothing between competing writers.
const busyRounds = 10

// raceWriters has several writers call write at the same time, of which only one may succeed, and returns the version that it wrote. A store that
// lets none or two succeed, or then has other bytes, is an [UnfitError]. While the store decides nothing, raceWriters tries again; after busyRounds
// times the error is errBusy.
func raceWriters(ctx context.Context, b Bucket, key string, write func([]byte) (Version, error)) (Version, error) {
	for range busyRounds {
		v, err := competeOnce(ctx, b, key, write)
		if v != "" || err != nil {
			return v, err
		}
	}
	return "", fmt.Errorf("%s: object %s: %w, however often it is tried", b, key, errBusy)
}

// competeOnce has several goroutines call write at the same time, each with its own bytes, and returns the version from the one that succeeded. If
// none or two succeed, or the object with this key then has other bytes, the error is an [UnfitError]. If the store has not decided between the
// writers, it returns no version and no error. Another error of a write is returned as it is.
func competeOnce(ctx context.Context, b Bucket, key string, write func([]byte) (Version, error)) (Version, error) {
	var (
		running  sync.WaitGroup
		versions [probeWriters]Version
		bodies   [probeWriters][]byte
		errs     [probeWriters]error
	)
	begin := make(chan struct{})
	for i := range probeWriters {
		bodies[i] = []byte(rand.Text())
		running.Go(func() {
			<-begin
			versions[i], errs[i] = write(bodies[i])
		})
	}
	close(begin)
	running.Wait()
	winner, busy := -1, false
	for i, err := range errs {
		switch {
		case err == nil && winner >= 0:
			return "", &UnfitError{b.String(), "of several writers of one object, two succeeded"}
		case err == nil:
			winner = i
		case errors.Is(err, errBusy):
			busy = true
		case !errors.Is(err, ErrExists) && !errors.Is(err, ErrChanged):
			return "", err
		}
	}
	if winner < 0 && busy {
		return "", nil
	}
	if winner < 0 {
		return "", &UnfitError{b.String(), "of several writers of one object, none succeeded"}
	}
	data, _, err := b.Get(ctx, key, 1<<10)
	if err != nil {
		return "", err
	}
	if !bytes.Equal(data, bodies[winner]) {
		return "", &UnfitError{b.String(), "it answered a write with success and then had other bytes"}
	}
	return versions[winner], nil
}
