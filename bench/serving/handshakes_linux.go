package main

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"
)

// shakers is how many handshakes are under way at a time.
const shakers = 8

// shakeHands opens one connection with TLS after the other and asks for something once on
// each. Both sides are bound to one group, X25519, because not every nginx has a
// library that knows the post-quantum one, which Larder prefers and keeps.
func (l *lean) shakeHands() error {
	end := time.Now().Add(l.Duration)
	errs := make(chan error, shakers)
	var mu sync.Mutex
	start := time.Now()
	for range shakers {
		go func() {
			errs <- l.shake(end, func(took time.Duration, bytes int) {
				mu.Lock()
				defer mu.Unlock()
				l.turn.Requests++
				l.turn.Bytes += int64(bytes)
				l.took = append(l.took, uint32(took.Microseconds()))
			})
		}()
	}
	var err error
	for range shakers {
		err = errors.Join(err, <-errs)
	}
	l.turn.Took = time.Since(start)
	return err
}

func (l *lean) shake(end time.Time, done func(took time.Duration, bytes int)) error {
	config := &tls.Config{
		InsecureSkipVerify: true, // on loopback, with a certificate of our own
		MinVersion:         tls.VersionTLS13, CurvePreferences: []tls.CurveID{tls.X25519}, NextProtos: []string{"http/1.1"},
		ServerName: "localhost",
	}
	if l.Handshakes == resumed {
		config.ClientSessionCache = tls.NewLRUClientSessionCache(1)
	}
	answer := make([]byte, l.Lengths[0])
	for first := true; time.Now().Before(end); first = false {
		start := time.Now()
		raw, err := net.DialTimeout("tcp", l.Address, 5*time.Second)
		if err != nil {
			return err
		}
		conn := tls.Client(raw, config)
		err = conn.SetDeadline(start.Add(5 * time.Second))
		if err == nil {
			_, err = conn.Write(l.Requests[0])
		}
		if err == nil {
			_, err = io.ReadFull(conn, answer)
		}
		if state := conn.ConnectionState(); err == nil && !first && state.DidResume != (l.Handshakes == resumed) {
			err = fmt.Errorf("resumed: %v", state.DidResume)
		}
		if err = errors.Join(err, raw.Close()); err != nil {
			return err
		}
		if !first {
			done(time.Since(start), len(answer))
		}
	}
	return nil
}
