// Package simulate runs a waiting room in virtual time: visitors who arrive, wait and
// stay, the machines of package queue, and the network between them with its delays and
// losses, clocks that differ, data centres that die and come back. The same [Options]
// give the same [Result].
//
// The result is measured from outside: when each visitor was let in, and until when a
// ticket would have passed at some data centre. It does not rely on what the machines count.
package simulate

import (
	"cmp"
	"fmt"
	"time"

	"github.com/larder-cdn/larder/server/waitingroom/queue"
)

// Options describe one run. Zero fields get their defaults.
type Options struct {
	Settings queue.Settings

	// Visitors arrive Over that time; default 10,000 over 30 minutes.
	Visitors int
	Over     time.Duration
	Profile  Profile
	// Stay is how long a visitor keeps sending requests after the admission, on average;
	// each stays up to a tenth longer or shorter. Default 1 minute.
	Stay time.Duration
	// Patience is how long visitors wait on average before they leave; 0 is forever.
	Patience time.Duration
	// Roaming is the part of requests that arrive at another data centre than the last.
	Roaming float64

	// Streams is the part of visitors who hold event streams, so that they come when they are called. The others poll.
	Streams float64
	// Slow is the part of those who are called that take up to 29 s to come. The others come within about a second.
	Slow float64

	// DataCentres, and Workers in each of them; default 2 and 3, at most 100 and 100.
	DataCentres, Workers int
	// Delay is how long a message to or from the global object takes on average; each
	// takes between half and one and a half of it.
	Delay time.Duration
	// Loss is the part of those messages that is lost, Repeat the part that comes twice.
	Loss, Repeat float64
	// Clocks is how far the clocks differ; default Settings.Skew. Beyond that the limits
	// need not hold.
	Clocks time.Duration
	// Follow has data centres go by the clock of the global object, as the nodes of a cluster do. Then Clocks are wall clocks, which are
	// used for nothing else. Messages must take less than a second.
	Follow bool
	// Failures happen during the run.
	Failures []Failure

	// Attackers are that many of the visitors.
	Attackers int
	Attack    Attack

	Seed uint64
	// Longest ends the run even if visitors still wait. Default: Over and four hours.
	Longest time.Duration
}

// Profile is how visitors are spread over time and data centres. In all of them the
// data centres are of different sizes.
type Profile string

const (
	Uniform Profile = "uniform" // evenly over the time; the default
	Bursts  Profile = "bursts"  // half of them within seconds, each time at one data centre
	Shifts  Profile = "shifts"  // the data centres take turns in being the largest
	// Together is the experiment of the article on random queueing: all visitors are there
	// when the room opens, with tickets from even arrivals over the time before.
	Together Profile = "together"
)

// Failure is something that goes wrong with one data centre, or with the global object.
type Failure struct {
	Kind        FailureKind
	DataCentre  int
	From, Until time.Duration
}

// FailureKind is what goes wrong.
type FailureKind uint8

const (
	// Down is a data centre that dies: its visitors go to the next one. It comes back
	// without its memory.
	Down FailureKind = iota
	// Cut is a data centre that works but cannot reach the global object.
	Cut
	// Amnesia is a global object that loses its state at From; Until is unused.
	Amnesia
	// Restart is a global object that continues from its snapshot at From; Until is unused.
	Restart
	// Killed is a data centre that dies, and continues from its journal.
	Killed
)

// Attack is what some visitors do to come in earlier.
type Attack string

const (
	Hammer Attack = "hammer" // check in every second
	Drop   Attack = "drop"   // throw the ticket away each time
	Resend Attack = "resend" // send the first ticket again and again
	Twice  Attack = "twice"  // send every ticket twice, to two workers
)

// withDefaults returns the options with defaults in place of zero fields, or an error if an option is out of range.
func (o Options) withDefaults() (Options, error) {
	o.Settings = o.Settings.WithDefaults()
	o.Visitors = cmp.Or(o.Visitors, 10_000)
	o.Over = cmp.Or(o.Over, 30*time.Minute)
	o.Profile = cmp.Or(o.Profile, Uniform)
	o.Stay = cmp.Or(o.Stay, time.Minute)
	o.DataCentres = cmp.Or(o.DataCentres, 2)
	o.Workers = cmp.Or(o.Workers, 3)
	o.Clocks = cmp.Or(o.Clocks, o.Settings.Skew)
	o.Longest = cmp.Or(o.Longest, o.Over+4*time.Hour)
	switch {
	case o.Visitors < 1 || o.Visitors > 5_000_000:
		return o, fmt.Errorf("%d visitors: must be from 1 to 5,000,000", o.Visitors)
	case o.Over < time.Second || o.Over > 24*time.Hour:
		return o, fmt.Errorf("arrivals over %v: must be from a second to a day", o.Over)
	case o.Stay < time.Second || o.Stay > 24*time.Hour:
		return o, fmt.Errorf("a stay of %v: must be from a second to a day", o.Stay)
	case o.DataCentres < 1 || o.DataCentres > 100 || o.Workers < 1 || o.Workers > 100:
		return o, fmt.Errorf("%d data centres with %d workers: each must be from 1 to 100", o.DataCentres, o.Workers)
	case o.Delay < 0 || o.Delay > time.Minute:
		return o, fmt.Errorf("a delay of %v: must be from 0 to a minute", o.Delay)
	case o.Loss < 0 || o.Loss > 0.95 || o.Repeat < 0 || o.Repeat > 1:
		return o, fmt.Errorf("loss %v, repetition %v: must be from 0 to 0.95 and to 1", o.Loss, o.Repeat)
	case o.Clocks < 0 || o.Clocks > time.Minute:
		return o, fmt.Errorf("clocks that differ by %v: must be from 0 to a minute", o.Clocks)
	case o.Longest < time.Minute || o.Longest > 7*24*time.Hour:
		return o, fmt.Errorf("a run of %v: must be from a minute to a week", o.Longest)
	}
	switch o.Profile {
	case Uniform, Bursts, Shifts, Together:
	default:
		return o, fmt.Errorf("profile %q: must be uniform, bursts, shifts or together", o.Profile)
	}
	for _, f := range o.Failures {
		if f.DataCentre < 0 || f.DataCentre >= o.DataCentres {
			return o, fmt.Errorf("a failure of data centre %d: there are %d", f.DataCentre, o.DataCentres)
		}
	}
	return o, nil
}
