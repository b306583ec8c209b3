package durable

import "errors"

// The errors that callers decide on. They come wrapped with the object that they
// concern.
var (
	// ErrOverloaded says that an object has as many events as it may have. The
	// event was not delivered.
	ErrOverloaded = errors.New("overloaded: it has too many requests waiting, try again later")
	// ErrReset says that an object was stopped in the middle of an event and starts
	// again from its storage. What the event wrote may be there or not.
	ErrReset = errors.New("stopped, and starts again from its storage")
	// ErrClosed says that the runtime is closed or about to be.
	ErrClosed = errors.New("the runtime of durable objects is closed")
	// ErrOutside says that a State was used where it has no turn: after its event, or
	// while another call made with it is under way.
	ErrOutside = errors.New("the state was used outside of its turn: use it before the handler returns and not within Call, and begin what is to run beside with Go")
	// ErrTooLarge says that a key, a value or an atomic write exceeds its bound.
	ErrTooLarge = errors.New("too large")
)

// errStale says that the instance stopped before the event was delivered to it.
var errStale = errors.New("the instance is no longer the object's")
