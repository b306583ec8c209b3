//go:build !linux

package worker

import (
	"errors"
	"time"
)

var system = kernel{landlock: none, filter: none, memory: none}

func none() error { return errors.New("this system has none that Larder can use") }

func (kernel) confine() error { return confineAnywhere() }

func addressSpace() mapped { return mapped{} }

func limit(int, mapped, int64) error { return nil }

func processorTime(int) (time.Duration, error) { return 0, none() }

func used(int) int64 { return 0 }
