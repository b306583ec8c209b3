// Package lane answers simple HTTP/1.1 requests on a connection by itself, and hands
// the connection to net/http as soon as a request is not simple. It serves HTTP/2 whole: what
// is not simple it gives to an http.Handler, request by request (multiplex.go, package h2).
//
// A [Listener] stands between a listener and an http.Server. It reads requests and gives
// them to a [Handler], which sends prepared bytes. What the lane does not answer comes out
// of Listener.Accept, with the bytes that were read, and never comes back.
//
// On Linux connections wait for requests on event loops, as many as can run at a time
// (loop_linux.go), with TLS as soon as the handshake is done. No connection delays the others
// on its loop for long: a connection whose client takes no more of a prepared response waits until
// the loop finds that it does (with TLS, or for the rest of a request, the goroutine leaves the loop
// to another one and waits), and after [Exchange.MayBlock] another one takes the loop if the handler is not back
// soon. What came with a new connection is answered before its loop waits for more. Go's poller
// is notified of a connection only when a client has to be waited for (descriptor_linux.go), and Go's
// scheduler of no system call that does not wait: after one its monitor looks every 20 µs for
// calls that take long, which costs a tenth of the time. Elsewhere each connection has a goroutine.
//
// What it guarantees:
//
//   - It refuses to guess. A request is answered here only if it is a GET or HEAD of
//     HTTP/1.1 in the plainest form: no body, no field that changes what a message or a
//     connection is, no byte that two readers could take for different things. Any other
//     goes to net/http, which decides, so the two cannot disagree about where a request
//     ends.
//   - What came before such a request is answered before it.
//   - A connection with TLS is handed over as *tls.Conn where the handshake failed, and, without
//     [Options.Requests], where it speaks HTTP/2.
//   - A request that is answered from prepared bytes takes no lock and no allocation,
//     beside what its handler does.
//   - Time and memory of a connection are bounded: a deadline for the handshake, the
//     head of a request, the wait for the next one and each write; one buffer of
//     4 KiB (none while it waits on a loop), and while something is being sent another of
//     17 KiB, with TLS 34 KiB more. A request that does not fit, or comes in many pieces,
//     is net/http's. HTTP/2 has 4 KiB for the table of fields, what its requests hold, and while
//     something is being sent 80 KiB, or 68 KiB with TLS; package h2 has the bounds.
//
// It must not know what clients request, nor how net/http responds.
//
// # Phases
//
// [Deadlines] has how long a connection may stay in each phase: TLS handshake, unanswered (no request has come yet), answering,
// idle after a response. Stop makes the last one short. A client in one of the others has nothing yet of what it came for, and
// may be slow; it is served, and its connection ends after the response. Over HTTP/2 the lane sends GOAWAY when the client has made
// a request, or when the deadline for that passes, because RFC 9113 §6.8 forbids new requests after GOAWAY. It sends the final
// GOAWAY when the client has answered a PING, or when the deadline of Idle passes, or where streams are open, that of Unanswered.
// Abort ends all phases; its caller decides when.
//
// # Evictions
//
// From nine tenths of the limit of connections on, each new connection evicts another one: of 32 at random the one with the highest
// score. Near the limit any may be evicted, below that only one with a score of at least 0.01. The score is
//
//	connection                                    score
//	does not take what was sent to it             (seconds since it last took something) · 10
//	has made no complete request: silent, in the  (seconds since it was accepted)² · n / (1 + m) · u
//	TLS handshake, or with a part of a request
//	others, and those that trusted proxies have   (seconds without a byte) · √m / 1000
//	opened in advance
//
// where n is how many connections of its client have made no complete request, m how many have made one, and u which share of all
// connections has made none; a silent one counts as 10 ms old at least, so that of a burst the client with the most loses one. Without an
// attack u is small, and idle connections are evicted before those of slow clients. An IPv6
// /56 counts as a client with a quarter of its connections, a /48 with a sixteenth, where that is more. So what is useless goes first,
// that of clients with much of it before others, and a company's new connections are safe behind its old ones. At most half of the
// limit may be in the TLS handshake.
//
// Each connection that ends without a complete request, other than by an eviction, counts against its client for half a second, and a
// quarter or a sixteenth of that against its networks; each first request makes up for one. With more than 20 of them the client churns: it
// tries half handshakes again and again, say. While more than an eighth of the limit is silent or in the TLS handshake, new connections of
// a client that churns are accepted, but served up to two seconds later, before a byte is read. So under an attack TLS handshakes that are
// not finished, and connections that are useless otherwise, have a rate of two a second and client; otherwise no client is delayed because
// of others at its address or network.
//
// # States
//
// A connection is in one state at a time (state.go). Only its owner moves it, but any
// goroutine may move one that waits, and may take the loop from one that may block. The
// goroutine that moves it to closing closes it. Abort shuts down the sockets of connections
// that have an owner, which closes them when reading or writing fails.
//
//	state     owner                   closed by   event                                      next
//	opening   the goroutine that      its owner   it waits on a loop, or without TLS         fresh
//	          accepts it, or shakes               the handshake is done, a loop takes it     alone
//	          hands                               HTTP/2 does not wait on a loop             busy
//	                                              a failed handshake, no handler             handed
//	                                              the lane has stopped                       closing
//	fresh     none: it waits for      the mover   its loop meets it, or finds something      onLoop
//	          its first request                   its goroutine has read something           alone
//	                                              there is something to do with HTTP/2       busy
//	                                              deadline, end of the client, Abort         closing
//	idle      none: it waits for      the mover   its loop finds something to read           onLoop
//	          its next request                    its goroutine has read something           alone
//	                                              there is something to do with HTTP/2       busy
//	                                              as fresh, and an eviction                  closing
//	busy      the goroutine that has  its owner   the client has not asked anything yet      fresh
//	          its lock (multiplex.go)             no request is left                         idle
//	                                              an error, the last response, Abort         closing
//	sending   none: it waits until    the mover   its loop finds that the client took some   onLoop
//	          the client takes more               deadline, Abort                            closing
//	onLoop    the loop's goroutine,   its owner   there is nothing of a first request yet    fresh
//	          which must not wait                 all that came is answered                  idle
//	                                              the client takes no more of a response     sending
//	                                              the client begins with HTTP/2              busy
//	                                              the handler calls MayBlock                 mayBlock
//	                                              the owner leaves the loop, to wait         alone
//	                                              an error, the last response                closing
//	mayBlock  the loop's goroutine    its owner,  the handler is back                        onLoop
//	                                  once back   another goroutine takes the loop           alone
//	alone     a goroutine without     its owner   there is nothing of a first request yet    fresh
//	          a loop, which may                   all that came is answered                  idle
//	          wait                                the client takes no more of a response     sending
//	                                              the client speaks HTTP/2                   busy
//	                                              a request is not simple                    handed
//	                                              an error, the last response                closing
//	handed    net/http                net/http
//	closing   the mover               the mover
package lane

import (
	"fmt"
	"sync/atomic"
	"time"
)

// A state says what a connection is at, and so which goroutine owns it; the table in the
// package comment has them all. One in which it waits also says since when, or until when it
// waits to send, in the bits above its name.
type state int64

const (
	opening state = iota
	fresh
	idle
	onLoop
	mayBlock
	alone
	handed
	busy
	sending
	closing

	nameBits state = 15
)

// follow has a bit for each state that may follow one, as in the table.
var follow = [nameBits + 1]int{
	opening:  1<<fresh | 1<<alone | 1<<busy | 1<<handed | 1<<closing,
	fresh:    1<<onLoop | 1<<alone | 1<<busy | 1<<closing,
	idle:     1<<onLoop | 1<<alone | 1<<busy | 1<<closing,
	onLoop:   1<<fresh | 1<<idle | 1<<mayBlock | 1<<busy | 1<<sending | 1<<alone | 1<<closing,
	mayBlock: 1<<onLoop | 1<<alone,
	alone:    1<<fresh | 1<<idle | 1<<busy | 1<<sending | 1<<handed | 1<<closing,
	sending:  1<<onLoop | 1<<closing,
	busy:     1<<fresh | 1<<idle | 1<<closing,
}

// epoch is what the times in states count from, so that no change of the clock matters.
var epoch = time.Now()

// withStart returns the state s, a name, with the time t: since when the connection has been waiting, or in the state sending,
// until when it may wait. Of two such states with the same name the one with the later time is larger.
func (s state) withStart(t time.Time) state { return state(t.Sub(epoch))&^nameBits | s }

// name returns the state without the time in it, such as idle, to compare it with.
func (s state) name() state { return s & nameBits }

// waitingSince returns the time that the state has: since when the connection has been waiting, or in the state sending, until
// when it may wait.
func (s state) waitingSince() time.Time { return epoch.Add(time.Duration(s &^ nameBits)) }

// phase returns the phase of a connection that waits for a request: Unanswered in the state fresh, before its first response,
// else Idle.
func (s state) phase() Phase {
	if s.name() == fresh {
		return Unanswered
	}
	return Idle
}

// isWaiting reports whether the connection waits for a request, so that any goroutine may change its state.
func (s state) isWaiting() bool { return s.name() == fresh || s.name() == idle }

// String returns the name of the state, without the time in it.
func (s state) String() string {
	return [...]string{"opening", "fresh", "idle", "onLoop", "mayBlock", "alone", "handed", "busy", "sending", "closing"}[s.name()]
}

// A lifecycle is the state of a connection. It panics where a change is not in the table.
type lifecycle struct {
	word  atomic.Int64
	moved func(from, to state) // is called for each change; nil except in tests
}

// state returns the current state of the connection, with the time in it.
func (l *lifecycle) state() state { return state(l.word.Load()) }

// move changes the state to to if it is still from, times included, and reports whether it was. It panics if the table of states
// does not allow the change.
func (l *lifecycle) move(from, to state) bool {
	if follow[from.name()]&(1<<to.name()) == 0 {
		panic(fmt.Sprintf("lane: a connection does not go from %v to %v", from, to))
	}
	if !l.word.CompareAndSwap(int64(from), int64(to)) {
		return false
	}
	if l.moved != nil {
		l.moved(from.name(), to.name())
	}
	return true
}

// moveTo changes the state. Only the owner may call it: it panics if another goroutine has changed the state meanwhile.
func (l *lifecycle) moveTo(to state) {
	if from := l.state(); !l.move(from, to) {
		panic(fmt.Sprintf("lane: another goroutine has moved a connection from %v to %v", from, l.state()))
	}
}
