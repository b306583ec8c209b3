package main

import (
	"testing"
	"testing/synctest"
	"time"
)

func TestRemembered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		looked := 0
		get := remembered(5*time.Second, func() int { looked++; return looked })
		for _, want := range []int{1, 1, 2} {
			if got := get(); got != want {
				t.Errorf("got what was seen in look %d, want %d", got, want)
			}
			time.Sleep(3 * time.Second)
		}
	})
}
