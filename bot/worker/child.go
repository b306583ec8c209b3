package worker

import (
	"bufio"
	"encoding/gob"
	"os"
	"os/signal"
	"runtime/debug"
)

// Argument is the first argument of a process that is to become a child. The
// program that uses a Pool calls Main when it finds it there.
const Argument = "worker-process"

// maxStack bounds a child's stack in bytes: enough for any honest file, and
// reached before the machine's memory is.
const maxStack = 256 << 20

// Main does jobs from standard input until that is closed, then ends the
// process.
func Main() {
	debug.SetMaxStack(maxStack)
	// Ctrl-C reaches the whole process group; the parent decides what it means.
	signal.Ignore(os.Interrupt)
	if len(os.Args) > 2 && os.Args[2] == niceArgument {
		lowerPriority()
	}
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

const niceArgument = "nice"
