//go:build !linux

package lane

import (
	"errors"
	"time"
)

// Elsewhere than on Linux there are no loops, and Go has all descriptors.
type loop struct{}

type arrival struct{}

func newLoop() (*loop, error) { return nil, errors.ErrUnsupported }
func (*loop) run()            {}
func (*loop) add(*conn) error { return errors.ErrUnsupported }
func (*loop) welcome(*conn)   {}
func (*loop) forget(*conn)    {}
func (*loop) close()          {}

func (*limited) prepare() error                         { return errors.ErrUnsupported }
func (*limited) acceptDescriptor() (int, *place, error) { return -1, nil, errors.ErrUnsupported }
func (*limitedConn) descriptor() (int, error)           { return -1, errors.ErrUnsupported }

func cutDescriptor(int) {}

func (*conn) leaveSet() error                { return nil }
func (*conn) prepareToWait() error           { return nil }
func (*conn) closeDescriptor() error         { return nil }
func (*conn) shutDown()                      {}
func (*conn) mayBlock()                      {}
func (*conn) isBack()                        {}
func (*conn) leaveLoop()                     {}
func (*conn) serveReady(time.Time) bool      { return false }
func (*conn) receiveNow([]byte) (int, error) { return 0, errors.ErrUnsupported }
func (*conn) sendNow() error                 { return errors.ErrUnsupported }

func (*conn) again()                         {}
func (*multiplexer) shutWrite()              {}
func (*conn) peer() string                   { return "" }
func (*multiplexer) sealedWrite([]byte)      {}
func (*multiplexer) closeNow()               {}
func (*multiplexer) sendNow(time.Time) error { return errors.ErrUnsupported }
