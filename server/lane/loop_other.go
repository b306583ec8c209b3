//go:build !linux

package lane

import (
	"errors"
	"time"
)

// On systems other than Linux there are no event loops, and Go's poller has all descriptors: newLoop fails, and nothing calls the methods.
type loop struct{}

type arrival struct{}

func newLoop() (*loop, error) { return nil, errors.ErrUnsupported }
func (*loop) run()            {}
func (*loop) add(*conn) error { return errors.ErrUnsupported }
func (*loop) addNew(*conn)    {}
func (*loop) forget(*conn)    {}
func (*loop) close()          {}

func (*limited) prepareListener() error                     { return errors.ErrUnsupported }
func (*limited) acceptDescriptor() (int, *connEntry, error) { return -1, nil, errors.ErrUnsupported }
func (*limitedConn) takeDescriptor() (int, error)           { return -1, errors.ErrUnsupported }

func shutdownDescriptor(int) {}

func (*conn) moveToPoller() error            { return nil }
func (*conn) prepareToWait() error           { return nil }
func (*conn) closeDescriptor() error         { return nil }
func (*conn) shutDown()                      {}
func (*conn) allowBlocking()                 {}
func (*conn) endBlocking()                   {}
func (*conn) leaveLoop()                     {}
func (*conn) serveReady(time.Time) bool      { return false }
func (*conn) receiveNow([]byte) (int, error) { return 0, errors.ErrUnsupported }
func (*conn) sendNow() error                 { return errors.ErrUnsupported }

func (*conn) serveAgain()                    {}
func (*multiplexer) shutWrite()              {}
func (*conn) peerAddress() string            { return "" }
func (*multiplexer) addRecord([]byte)        {}
func (*multiplexer) closeNow()               {}
func (*multiplexer) sendNow(time.Time) error { return errors.ErrUnsupported }
