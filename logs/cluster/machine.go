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
	putting              // the goroutine puts the commit under the number
	reading              // the goroutine reads the commit that has the number
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

// setNumber sets the number of the next commit before the node takes over. epoch is that of the last commit. If it is later than the node's own,
// another node has taken over: the result is deposed, and the machine ends.
func (m *machine) setNumber(number, epoch int64) outcome {
	if epoch > m.epoch {
		m.phase = ended
		return deposed
	}
	m.number = number
	return undecided
}

// startAttempt starts the attempt to create the next commit, which has this nonce. It panics if another attempt is under way or the machine has
// ended.
func (m *machine) startAttempt(nonce string) {
	if m.phase != idle {
		panic("cluster: a commit is under way")
	}
	m.nonce, m.phase = nonce, putting
}

// putDone handles the result of a request to create the commit. It returns landed if the commit was created. Otherwise the number has another one, or
// the result is unknown: then it returns undecided, and the caller reads next what the number has.
func (m *machine) putDone(created bool) outcome {
	if created {
		return m.endAttempt(landed)
	}
	m.phase = reading
	return undecided
}

// foundNothing handles that the number has no commit yet. It returns undecided: the caller puts the same bytes again, because the first request may
// still take effect.
func (m *machine) foundNothing() outcome {
	m.phase = putting
	return undecided
}

// foundCommit handles that the number has a commit with this epoch and nonce. With the attempt's own nonce it returns landed, and for an earlier
// epoch overtaken; either ends the attempt and advances to the next number. For the node's own epoch it returns forged, and for a later one deposed;
// then the machine ends, and no commit of this node lands any more.
func (m *machine) foundCommit(epoch int64, nonce string) outcome {
	switch {
	case nonce == m.nonce:
		return m.endAttempt(landed)
	case epoch < m.epoch:
		return m.endAttempt(overtaken)
	case epoch == m.epoch:
		m.phase = ended
		return forged
	}
	m.phase = ended
	return deposed
}

// endAttempt ends the attempt to create a commit, advances to the next number, and returns o.
func (m *machine) endAttempt(o outcome) outcome {
	m.number++
	m.nonce, m.phase = "", idle
	return o
}
