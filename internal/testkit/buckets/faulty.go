package buckets

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"

	"github.com/larder-cdn/larder/kvstore/bucket"
)

// ErrLost is what a Faulty bucket answers when it does not tell what happened.
var ErrLost = errors.New("the answer was lost")

// A Fault is what becomes of a request.
type Fault int

// The faults. A write that lands late does so at the next Land.
const (
	None       Fault = iota
	Never            // it is not done
	LostAnswer       // it is done
	Late             // it is done later
)

// Faulty is a bucket whose requests fail as [Faulty.SetFaults] says. Without it, none fails.
type Faulty struct {
	bucket.Bucket

	mu     sync.Mutex
	decide func(write bool, key string) Fault
	late   []func()
}

// SetFaults sets the function that chooses the fault of each request from now on, nil for no faults. Requests
// may run meanwhile. write reports whether the request is a write.
func (f *Faulty) SetFaults(decide func(write bool, key string) Fault) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.decide = decide
}

func (f *Faulty) fault(write bool, key string) Fault {
	f.mu.Lock()
	decide := f.decide
	f.mu.Unlock()
	if decide == nil {
		return None
	}
	return decide(write, key)
}

// Randomly decides by chance: of every so many requests, one fails.
func Randomly(seed uint64, often int) func(bool, string) Fault {
	var mu sync.Mutex
	r := rand.New(rand.NewPCG(seed, 0))
	return func(write bool, _ string) Fault {
		mu.Lock()
		defer mu.Unlock()
		if r.IntN(often) > 0 {
			return None
		}
		if !write {
			return Never
		}
		return Fault(1 + r.IntN(3))
	}
}

// Land has every write that was put off happen now.
func (f *Faulty) Land() {
	f.mu.Lock()
	late := f.late
	f.late = nil
	f.mu.Unlock()
	for _, land := range late {
		land()
	}
}

func (f *Faulty) write(key string, do func(context.Context) (bucket.Version, error)) (bucket.Version, error) {
	switch f.fault(true, key) {
	case Never:
		return "", ErrLost
	case LostAnswer:
		do(context.Background()) //nolint:errcheck // the client does not get to know
		return "", ErrLost
	case Late:
		f.mu.Lock()
		defer f.mu.Unlock()
		f.late = append(f.late, func() { do(context.Background()) }) //nolint:errcheck // as above
		return "", ErrLost
	}
	return do(context.Background())
}

// Create implements [bucket.Bucket].
func (f *Faulty) Create(_ context.Context, key string, data []byte) (bucket.Version, error) {
	return f.write(key, func(ctx context.Context) (bucket.Version, error) { return f.Bucket.Create(ctx, key, data) })
}

// Replace implements [bucket.Bucket].
func (f *Faulty) Replace(_ context.Context, key string, data []byte, old bucket.Version) (bucket.Version, error) {
	return f.write(key, func(ctx context.Context) (bucket.Version, error) { return f.Bucket.Replace(ctx, key, data, old) })
}

// Put implements [bucket.Bucket].
func (f *Faulty) Put(_ context.Context, key string, data []byte) error {
	_, err := f.write(key, func(ctx context.Context) (bucket.Version, error) { return "", f.Bucket.Put(ctx, key, data) })
	return err
}

// Get implements [bucket.Bucket].
func (f *Faulty) Get(ctx context.Context, key string, most int64) ([]byte, bucket.Version, error) {
	if f.fault(false, key) != None {
		return nil, "", ErrLost
	}
	return f.Bucket.Get(ctx, key, most)
}

// GetOther implements [bucket.Bucket].
func (f *Faulty) GetOther(ctx context.Context, key string, most int64, known bucket.Version) ([]byte, bucket.Version, error) {
	if f.fault(false, key) != None {
		return nil, "", ErrLost
	}
	return f.Bucket.GetOther(ctx, key, most, known)
}
