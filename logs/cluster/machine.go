package cluster

// A machine decides what to do to have a commit land. It does nothing itself, and knows no time: the
// caller does what next says, tells what came of it, and may pause for as long as it likes between.
//
//	idle ──begin──► putting ──created──────────────────────► idle (landed)
//	                  ▲  │ exists, unknown
//	        absent    │  ▼
//	                reading ──has our nonce────────────────► idle (landed)
//	                  │ ▲ └───has a lower epoch────────────► idle (overtaken: apply it, build anew)
//	                  └─┘     has a higher epoch───────────► ended
//	                unknown
//
// From putting there is no way to give up: the put may still land. Once a number is another's, it
// cannot, because the store creates each object once.
type machine struct {
	epoch  int64
	number int64  // of the next commit
	nonce  string // of the one that is under way
	phase  phase
}

type phase uint8

const (
	idle    phase = iota // nothing is under way
	putting              // the commit is to be put under the number
	reading              // what the number has is to be read
	ended                // another node writes; nothing of this one lands any more
)

// outcome is what an event means to the goroutine that wants the commit.
type outcome uint8

const (
	undecided outcome = iota // go on
	landed                   // it is published
	overtaken                // the number has a commit of an earlier epoch; this one will never land as it is
	deposed                  // the number has a commit of a later epoch; this one will never land
	forged                   // the number has a commit of this epoch that is not ours: the store lies
)

// putResult is what is known of a put.
type putResult uint8

const (
	putCreated putResult = iota
	putExists
	putUnknown
)

// applied tells, before the commit with which the node takes over, what number it has come to, and
// which epoch the commit before has: another node may have taken over since this one claimed its own.
func (m *machine) applied(number, epoch int64) outcome {
	if epoch > m.epoch {
		m.phase = ended
		return deposed
	}
	m.number = number
	return undecided
}

// begin has a commit with that nonce land next.
func (m *machine) begin(nonce string) {
	if m.phase != idle {
		panic("cluster: a commit is under way")
	}
	m.nonce, m.phase = nonce, putting
}

// put tells what came of putting.
func (m *machine) put(r putResult) outcome {
	if r == putCreated {
		return m.settle(landed)
	}
	m.phase = reading
	return undecided
}

// absent tells that the number has no commit yet: the same bytes are put again, because the first
// ones may still land.
func (m *machine) absent() outcome {
	m.phase = putting
	return undecided
}

// found tells which commit the number has.
func (m *machine) found(epoch int64, nonce string) outcome {
	switch {
	case nonce == m.nonce:
		return m.settle(landed)
	case epoch < m.epoch:
		return m.settle(overtaken)
	case epoch == m.epoch:
		m.phase = ended
		return forged
	}
	m.phase = ended
	return deposed
}

// settle goes on to the next number.
func (m *machine) settle(o outcome) outcome {
	m.number++
	m.nonce, m.phase = "", idle
	return o
}
