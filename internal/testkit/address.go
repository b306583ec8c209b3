package testkit

import (
	"fmt"
	"math/rand/v2"
	"net"
	"testing"
)

// UnusedAddress returns a loopback address and a port for a process that a test starts later. The address is a random one of 127.0.0.0/8, so
// that neither another test nor the local end of a connection, which are at 127.0.0.1, takes the port meanwhile. On systems that have only
// 127.0.0.1, it is that.
func UnusedAddress(tb testing.TB) string {
	tb.Helper()
	l, err := net.Listen("tcp", fmt.Sprintf("127.%d.%d.%d:0", 1+rand.IntN(254), rand.IntN(256), 1+rand.IntN(254)))
	if err != nil {
		l, err = net.Listen("tcp", "127.0.0.1:0")
	}
	if err != nil {
		tb.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}
