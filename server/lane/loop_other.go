//go:build !linux

package lane

import (
	"errors"
	"time"
)

// Elsewhere than on Linux there are no loops, and Go has all descriptors.
type (
	loop    struct{}
	vectors struct{}
)

func newLoops() ([]*loop, error) { return nil, errors.ErrUnsupported }
func (*loop) add(*conn) error    { return errors.ErrUnsupported }
func (*loop) forget(*conn)       {}
func (*loop) close()             {}

func (*limited) prepare() error                 { return errors.ErrUnsupported }
func (*limited) acceptDescriptor() (int, error) { return -1, errors.ErrUnsupported }
func (*limitedConn) descriptor() (int, error)   { return -1, errors.ErrUnsupported }

func (*conn) adopt() error                   { return nil }
func (*conn) detach() error                  { return nil }
func (*conn) closeDescriptor() error         { return nil }
func (*conn) shutDown()                      {}
func (*conn) lend()                          {}
func (*conn) isBack()                        {}
func (*conn) leave()                         {}
func (*conn) serveNow(time.Time) bool        { return false }
func (*conn) receiveNow([]byte) (int, error) { return 0, errors.ErrUnsupported }
func (*conn) sendNow(*[3][]byte) error       { return errors.ErrUnsupported }
