package clients

import "testing"

func TestBound(t *testing.T) {
	b := NewBound(2)
	enter := func(remote string, want bool) func() {
		t.Helper()
		leave, ok := b.Enter(remote)
		if ok != want {
			t.Errorf("%s may enter: %v, want %v", remote, ok, want)
		}
		return leave
	}
	first := enter("203.0.113.7:1000", true)
	second := enter("[::ffff:203.0.113.7]:1001", true) // the same one, on a socket for both
	enter("203.0.113.7:1002", false)
	enter("203.0.113.8:1000", true)
	first()
	third := enter("203.0.113.7:1003", true)
	enter("203.0.113.7:1004", false)

	six := enter("[2001:db8:0:1::1]:1000", true)
	seven := enter("[2001:db8:0:1:ffff::2]:1000", true)
	enter("[2001:db8:0:1::3]:1000", false)
	enter("[2001:db8:0:2::1]:1000", true)()

	// Of these there is no telling who it is.
	for _, remote := range []string{"127.0.0.1:1", "[::1]:1", "10.1.2.3:1", "192.168.0.1:1", "172.17.0.1:1", "[fd00::1]:1", "[fe80::1%eth0]:1", "@", "", "pipe"} {
		for range 3 {
			enter(remote, true)
		}
	}
	for _, leave := range []func(){second, third, six, seven} {
		leave()
	}
	if len(b.has) != 1 { // 203.0.113.8, which has not left
		t.Errorf("it remembers %v", b.has)
	}
}
