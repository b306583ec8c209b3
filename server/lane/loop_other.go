//go:build !linux

package lane

import (
	"errors"
	"time"
)

// On systems other than Linux there are no event loops, and Go's poller has all descriptors: newLoop fails, and nothing calls the methods.
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

// prepareListener is a stub for systems without event loops, where nothing calls it.
func (*limited) prepareListener() error { return errors.ErrUnsupported }

// acceptDescriptor is a stub for systems without event loops, where nothing calls it.
func (*limited) acceptDescriptor() (int, *connEntry, error) { return -1, nil, errors.ErrUnsupported }

// takeDescriptor is a stub for systems without event loops, where nothing calls it.
func (*limitedConn) takeDescriptor() (int, error) { return -1, errors.ErrUnsupported }

// shutdownDescriptor is a stub for systems without event loops, where nothing calls it.
func shutdownDescriptor(int) {}

// moveToPoller is a stub for systems without event loops, where nothing calls it.
func (*conn) moveToPoller() error { return nil }

// prepareToWait is a stub for systems without event loops, where nothing calls it.
func (*conn) prepareToWait() error { return nil }

// closeDescriptor is a stub for systems without event loops, where nothing calls it.
func (*conn) closeDescriptor() error { return nil }

// shutDown is a stub for systems without event loops, where nothing calls it.
func (*conn) shutDown() {}

// allowBlocking is a stub for systems without event loops, where nothing calls it.
func (*conn) allowBlocking() {}

// endBlocking is a stub for systems without event loops, where nothing calls it.
func (*conn) endBlocking() {}

// leaveLoop is a stub for systems without event loops, where nothing calls it.
func (*conn) leaveLoop() {}

// serveReady is a stub for systems without event loops, where nothing calls it.
func (*conn) serveReady(time.Time) bool { return false }

// receiveNow is a stub for systems without event loops, where nothing calls it.
func (*conn) receiveNow([]byte) (int, error) { return 0, errors.ErrUnsupported }

// sendNow is a stub for systems without event loops, where nothing calls it.
func (*conn) sendNow() error { return errors.ErrUnsupported }

// serveAgain is a stub for systems without event loops, where nothing calls it.
func (*conn) serveAgain() {}

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
