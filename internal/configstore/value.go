package configstore

import (
	"context"
	"slices"
	"sync"
)

// A Value is configuration that is in force in this process: one version at a time, of which nothing is ever changed. Consumers get it
// or subscribe to it. It is safe for concurrent use.
type Value[T any] struct {
	mu          sync.Mutex
	current     T
	number      int64 // how many versions there have been
	subscribers []*func(context.Context, T) error
}

// Get returns the version in force; before the first [Value.Set] the zero value.
func (v *Value[T]) Get() T {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.current
}

// Set puts a version into force, and returns how many versions there have been, with this one. It does not notify the subscribers.
func (v *Value[T]) Set(next T) (number int64) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.current = next
	v.number++
	return v.number
}

// Subscribe has each [Value.Notify] call notify with a version, until the caller calls unsubscribe. An error of notify ends that
// Notify.
func (v *Value[T]) Subscribe(notify func(context.Context, T) error) (unsubscribe func()) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.subscribers = append(v.subscribers, &notify)
	return func() {
		v.mu.Lock()
		defer v.mu.Unlock()
		v.subscribers = slices.DeleteFunc(v.subscribers, func(f *func(context.Context, T) error) bool { return f == &notify })
	}
}

// Notify calls the subscribers with a version, in the order of their subscriptions, and does not put it into force. It stops at
// the first error, which it returns: so if only the first subscriber can fail, either all apply a version or none does.
func (v *Value[T]) Notify(ctx context.Context, version T) error {
	v.mu.Lock()
	subscribers := slices.Clone(v.subscribers)
	v.mu.Unlock()
	for _, f := range subscribers {
		if err := (*f)(ctx, version); err != nil {
			return err
		}
	}
	return nil
}
