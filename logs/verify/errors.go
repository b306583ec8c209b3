package verify

import "fmt"

// A Difference is an error that says what is not as it was promised. Other errors
// say why something could not be found out.
type Difference struct{ problem string }

func (d *Difference) Error() string { return d.problem }

func differs(format string, args ...any) error {
	return &Difference{fmt.Sprintf(format, args...)}
}

// A ForkError is the proof that somebody who has the log's key shows one log to some
// and another one to others, or takes back what was there: two signed checkpoints
// that contradict each other.
type ForkError struct {
	Seen  []byte // the signed checkpoint that was seen before
	Shown []byte // the one that is shown now
	Why   string
}

func (e *ForkError) Error() string { return e.Why }
