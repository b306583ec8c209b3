package worker

import (
	"bufio"
	"encoding/gob"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"
)

// Argument is the first argument of a process that is to become a child. The
// program that uses a Pool calls Main when it finds it there.
const Argument = "worker-process"

// maxStack bounds a child's stack in bytes: enough for any honest file, and
// reached before the machine's memory is.
const maxStack = 256 << 20

// maxMemory bounds a child's memory in bytes, where the system can. The largest
// honest job, Brotli's best for 25 MiB, takes about 600 MiB.
const maxMemory = 2 << 30

// Main does jobs from standard input until that is closed, then ends the
// process.
func Main() {
	debug.SetMaxStack(maxStack)
	// Ctrl-C and a service manager's stop reach the whole group of processes; the
	// parent decides what they mean, and its end closes the input.
	signal.Ignore(os.Interrupt, syscall.SIGTERM)
	if len(os.Args) > 2 && os.Args[2] == niceArgument {
		lowerPriority()
	}
	limitMemory(maxMemory)
	jobs := make(chan request)
	go func() {
		in := gob.NewDecoder(bufio.NewReader(os.Stdin))
		for {
			var r request
			if err := in.Decode(&r); err != nil {
				os.Exit(0) // the parent is gone, perhaps in the middle of a job
			}
			jobs <- r
		}
	}()
	out := gob.NewEncoder(os.Stdout)
	for r := range jobs {
		if err := out.Encode(do(r)); err != nil {
			os.Exit(1)
		}
	}
}

// The second argument of a child that is to run, or runs, at the lowest priority.
const (
	niceArgument  = "nice"
	nicedArgument = "niced"
)
