package app

import (
	"bufio"
	"bytes"
	"errors"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// The initialization of Larder's packages runs in every child process, so it may allocate little: tables and expressions are made on first
// use. It needed 46,000 allocations of 3.4 MB once. The runtime counts them exactly.
func TestPackageInitialization(t *testing.T) {
	const (
		maxOfPackage = 1200 // allocations
		maxOfAll     = 4000
		maxBytes     = 300 << 10
	)
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	var trace bytes.Buffer
	cmd := exec.Command(program, "-test.run", "^$")
	cmd.Env, cmd.Stderr = append(os.Environ(), "GODEBUG=inittrace=1"), &trace
	if err := cmd.Run(); err != nil {
		t.Fatalf("couldn't run the program: %v\n%s", err, &trace)
	}
	line := regexp.MustCompile(`^init (github\.com/larder-cdn/larder/\S+) .* ([0-9]+) bytes, ([0-9]+) allocs$`)
	packages, all, size := 0, 0, 0
	for lines := bufio.NewScanner(&trace); lines.Scan(); {
		m := line.FindStringSubmatch(lines.Text())
		if m == nil || strings.Contains(m[1], "/testkit") {
			continue
		}
		bytes, errBytes := strconv.Atoi(m[2])
		allocations, err := strconv.Atoi(m[3])
		if err := errors.Join(errBytes, err); err != nil {
			t.Fatal(err)
		}
		packages, all, size = packages+1, all+allocations, size+bytes
		if allocations > maxOfPackage {
			t.Errorf("the initialization of %s needs %d allocations of %d bytes, over %d; make its tables on first use", m[1], allocations, bytes, maxOfPackage)
		}
	}
	t.Logf("%d packages are initialized with %d allocations of %d bytes", packages, all, size)
	if packages < 10 || all > maxOfAll || size > maxBytes {
		t.Errorf("%d packages are initialized with %d allocations of %d bytes; at most %d and %d are allowed", packages, all, size, maxOfAll, maxBytes)
	}
}

func TestLazy(t *testing.T) {
	var opened, closed int
	made := func(err error) *lazy[int] {
		opened, closed = 0, 0
		return &lazy[int]{
			open:  func() (int, error) { opened++; return 7, err },
			close: func(int) { closed++ },
		}
	}
	l := made(nil)
	for range 2 {
		if got, err := l.get(); got != 7 || err != nil {
			t.Errorf("got %d, %v", got, err)
		}
	}
	if l.closeIfOpen(); opened != 1 || closed != 1 {
		t.Errorf("opened %d times, closed %d times", opened, closed)
	}
	l = made(nil)
	l.closeIfOpen()
	if _, err := l.get(); !errors.Is(err, errClosed) || opened+closed != 0 {
		t.Errorf("what was never used: opened %d times, closed %d times, %v", opened, closed, err)
	}
	l = made(errors.New("broken"))
	if _, err := l.get(); err == nil {
		t.Error("no error")
	}
	if l.closeIfOpen(); closed != 0 {
		t.Errorf("what could not be opened: closed %d times", closed)
	}
	l = made(nil)
	l.open = func() (int, error) { panic("broken") }
	func() {
		defer func() { recover() }() //nolint:errcheck // it is "broken"
		l.get()                      //nolint:errcheck // it panics
	}()
	if _, err := l.get(); err == nil {
		t.Error("no error after a panic")
	}
	if l.closeIfOpen(); closed != 0 {
		t.Errorf("what panicked when it was opened: closed %d times", closed)
	}
}
