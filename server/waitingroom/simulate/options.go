package simulate

import (
	"fmt"
	"time"

	"github.com/larder-cdn/larder/server/waitingroom/queue"
)

// Options are one run. Zero values get the defaults that are named.
type Options struct {
	Settings queue.Settings

	// Visitors arrive Over that time; default 10,000 over 30 minutes.
	Visitors int
	Over     time.Duration
	Profile  Profile
	// Stay is how long a visitor goes on sending requests after the admission, on
	// average; each stays up to a tenth longer or shorter. Default 1 minute.
	Stay time.Duration
	// Patience is how long visitors wait on average before they leave; 0 is for ever.
	Patience time.Duration
	// Roaming is the part of requests that arrive at another data centre than the last.
	Roaming float64

	// DataCentres, and Workers in each of them; default 2 and 3, at most 100 and 100.
	DataCentres, Workers int
	// Delay is how long a message to or from the global object takes on average; each
	// takes between half and one and a half of it.
	Delay time.Duration
	// Loss is the part of those messages that get lost, Repeat the part that come twice.
	Loss, Repeat float64
	// Clocks is how far the clocks differ; default Settings.Skew, so the limits need not
	// hold where it is more.
	Clocks time.Duration
	// Failures happen on the way.
	Failures []Failure

	// Attackers are that many of the visitors.
	Attackers int
	Attack    Attack

	Seed uint64
	// Longest ends the run, whoever still waits. Default: Over and four hours.
	Longest time.Duration
}

// Profile is how visitors are spread over time and data centres. In all of them the
// data centres are of different size.
type Profile string

const (
	Uniform Profile = "uniform" // evenly over the time; the default
	Bursts  Profile = "bursts"  // half of them within seconds, each time at one data centre
	Shifts  Profile = "shifts"  // the data centres take turns in being the largest
	// Together is the experiment of the article on random queueing: all are there when
	// the room opens, with tickets that say they arrived evenly over the time before.
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
	// Down is a data centre that is gone: its visitors go to the next one. It comes back
	// without its memory.
	Down FailureKind = iota
	// Cut is a data centre that goes on but cannot be reached by the global object.
	Cut
	// Amnesia is a global object that loses its state at From; Until means nothing.
	Amnesia
	// Restart is a global object that goes on from its snapshot at From.
	Restart
)

// Attack is what some visitors do to come in earlier.
type Attack string

const (
	Hammer Attack = "hammer" // check in every second
	Drop   Attack = "drop"   // throw the ticket away each time
	Resend Attack = "resend" // send the first ticket again and again
	Twice  Attack = "twice"  // send every ticket twice, to two workers
)

// Check reports what cannot be run.
func (o Options) Check() error {
	_, err := o.withDefaults()
	return err
}

func (o Options) withDefaults() (Options, error) {
	var err error
	if o.Settings, err = o.Settings.WithDefaults(); err != nil {
		return o, err
	}
	if o.Visitors == 0 {
		o.Visitors = 10_000
	}
	if o.Over == 0 {
		o.Over = 30 * time.Minute
	}
	if o.Profile == "" {
		o.Profile = Uniform
	}
	if o.Stay == 0 {
		o.Stay = time.Minute
	}
	if o.DataCentres == 0 {
		o.DataCentres = 2
	}
	if o.Workers == 0 {
		o.Workers = 3
	}
	if o.Clocks == 0 {
		o.Clocks = o.Settings.Skew
	}
	if o.Longest == 0 {
		o.Longest = o.Over + 4*time.Hour
	}
	switch {
	case o.Visitors < 1 || o.Visitors > 5_000_000:
		return o, fmt.Errorf("%d visitors: it has to be from 1 to 5,000,000", o.Visitors)
	case o.Over < time.Second || o.Over > 24*time.Hour:
		return o, fmt.Errorf("arrivals over %v: it has to be from a second to a day", o.Over)
	case o.Stay < time.Second || o.Stay > 24*time.Hour:
		return o, fmt.Errorf("a stay of %v: it has to be from a second to a day", o.Stay)
	case o.DataCentres < 1 || o.DataCentres > 100 || o.Workers < 1 || o.Workers > 100:
		return o, fmt.Errorf("%d data centres with %d workers: each has to be from 1 to 100", o.DataCentres, o.Workers)
	case o.Delay < 0 || o.Delay > time.Minute:
		return o, fmt.Errorf("a delay of %v: it has to be from 0 to a minute", o.Delay)
	case o.Loss < 0 || o.Loss > 0.95 || o.Repeat < 0 || o.Repeat > 1:
		return o, fmt.Errorf("loss %v, repetition %v: they have to be from 0 to 0.95 and to 1", o.Loss, o.Repeat)
	case o.Clocks < 0 || o.Clocks > time.Minute:
		return o, fmt.Errorf("clocks that differ by %v: it has to be from 0 to a minute", o.Clocks)
	case o.Longest < time.Minute || o.Longest > 7*24*time.Hour:
		return o, fmt.Errorf("a run of %v: it has to be from a minute to a week", o.Longest)
	}
	switch o.Profile {
	case Uniform, Bursts, Shifts, Together:
	default:
		return o, fmt.Errorf("profile %q: it is uniform, bursts, shifts or together", o.Profile)
	}
	for _, f := range o.Failures {
		if f.DataCentre < 0 || f.DataCentre >= o.DataCentres {
			return o, fmt.Errorf("a failure of data centre %d of %d", f.DataCentre, o.DataCentres)
		}
	}
	return o, nil
}
