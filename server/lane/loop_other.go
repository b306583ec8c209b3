//go:build !linux

package lane

import (
	"errors"
	"net"
	"time"
)

// On systems other than Linux there are no event loops: prepareListener fails, and each connection has a goroutine that Go's poller
// wakes. Then most methods are not called, and those that are have nothing to do.
type loop struct{}

type arrival struct{}

// newLoop returns an error: only Linux has event loops.
func newLoop() (*loop, error) { return nil, errors.ErrUnsupported }

// run is a stub for systems without event loops, where nothing calls it.
func (*loop) run() {}

// add is a stub for systems without event loops, where nothing calls it.
func (*loop) add(*conn) error { return errors.ErrUnsupported }

// addNew is a stub for systems without event loops, where nothing calls it.
func (*loop) addNew(*conn) {}

// forget is a stub for systems without event loops, where nothing calls it.
func (*loop) forget(*conn) {}

// close is a stub for systems without event loops, where nothing calls it.
func (*loop) close() {}

// prepareListener returns an error: only Linux has event loops.
func (*limited) prepareListener() error { return errors.ErrUnsupported }

// acceptDescriptor is a stub for systems without event loops, where nothing calls it.
func (*limited) acceptDescriptor() (int, *connEntry, error) { return -1, nil, errors.ErrUnsupported }

// takeDescriptor is a stub for systems without event loops, where nothing calls it.
func (*limitedConn) takeDescriptor() (int, error) { return -1, errors.ErrUnsupported }

// outstanding reports nothing: only Linux says what a client has taken.
func (*connEntry) outstanding() (unsent bool, quiet time.Duration) { return false, 0 }

// shutdownDescriptor is a stub for systems without event loops, where nothing calls it.
func shutdownDescriptor(int) {}

// moveToPoller is a stub for systems without event loops, where nothing calls it.
func (*conn) moveToPoller() error { return nil }

// prepareToWait does nothing: each connection has a goroutine, which may wait.
func (*conn) prepareToWait() error { return nil }

// waitWhileOpen waits for as long as the delay says: only Linux says that a client has closed a connection before its bytes are read.
func waitWhileOpen(_ net.Conn, delay time.Duration) error {
	time.Sleep(delay)
	return nil
}

// closeDescriptor is a stub for systems without event loops, where nothing calls it.
func (*conn) closeDescriptor() error { return nil }

// shutDown is a stub for systems without event loops, where nothing calls it.
func (*conn) shutDown() {}

// allowBlocking does nothing: each connection has a goroutine, which may block.
func (*conn) allowBlocking() {}

// endBlocking does nothing, because allowBlocking does nothing.
func (*conn) endBlocking() {}

// leaveLoop does nothing: on this system no goroutine runs a loop, and each connection has its own.
func (*conn) leaveLoop() {}

// serveReady is a stub for systems without event loops, where nothing calls it.
func (*conn) serveReady(time.Time) bool { return false }

// receiveNow is a stub for systems without event loops, where nothing calls it.
func (*conn) receiveNow([]byte) (int, error) { return 0, errors.ErrUnsupported }

// sendNow is a stub for systems without event loops, where nothing calls it.
func (*conn) sendNow() error { return errors.ErrUnsupported }

// shutWrite is a stub for systems without event loops, where nothing calls it.
func (*multiplexer) shutWrite() {}

// peerAddress is a stub for systems without event loops, where nothing calls it.
func (*conn) peerAddress() string { return "" }

// addRecord is a stub for systems without event loops, where nothing calls it.
func (*multiplexer) addRecord([]byte) {}

// closeNow is a stub for systems without event loops, where nothing calls it.
func (*multiplexer) closeNow() {}

// sendNow is a stub for systems without event loops, where nothing calls it.
func (*multiplexer) sendNow(time.Time) error { return errors.ErrUnsupported }
