// Package parallel runs more tests at once than there are processors, for packages whose tests wait for timers, disks and
// processes.
package parallel

import (
	"flag"
	"runtime"
	"strconv"
)

// Set has n parallel tests run at once, or one for each processor where that is more. The flag -parallel overrides it. A
// TestMain calls it.
func Set(n int) {
	const name = "test.parallel"
	flag.Parse()
	set := false
	flag.Visit(func(f *flag.Flag) { set = set || f.Name == name })
	if set {
		return
	}
	if err := flag.Set(name, strconv.Itoa(max(n, runtime.GOMAXPROCS(0)))); err != nil {
		panic(err)
	}
}
