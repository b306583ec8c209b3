package app

import (
	"errors"
	"testing"
)

func TestLazy(t *testing.T) {
	var opened, closed int
	made := func(err error) *lazy[int] {
		opened, closed = 0, 0
		return &lazy[int]{
			open:  func() (int, error) { opened++; return 7, err },
			close: func(int) error { closed++; return nil },
		}
	}
	l := made(nil)
	for range 2 {
		if got, err := l.get(); got != 7 || err != nil {
			t.Errorf("got %d, %v", got, err)
		}
	}
	if err := l.end(); err != nil || opened != 1 || closed != 1 {
		t.Errorf("opened %d times, closed %d times, %v", opened, closed, err)
	}
	l = made(nil)
	if err := l.end(); err != nil {
		t.Error(err)
	}
	if _, err := l.get(); !errors.Is(err, errClosed) || opened+closed != 0 {
		t.Errorf("what was never used: opened %d times, closed %d times, %v", opened, closed, err)
	}
	l = made(errors.New("broken"))
	if _, err := l.get(); err == nil {
		t.Error("no error")
	}
	if err := l.end(); err != nil || closed != 0 {
		t.Errorf("what could not be opened: closed %d times, %v", closed, err)
	}
}
