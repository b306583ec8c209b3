package worker

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"strconv"
	"testing"

	"github.com/larder-cdn/larder/kvstore/coding"
)

// BenchmarkMemory tells what a child takes for contents of each size, at its peak: resident memory in MiB, without the
// program's own pages, which all children share. LARDER_TEXT names a file to take the bytes from, without which they
// are made up, and LARDER_PROGRAM the larder program to measure.
//
//	go test -run '^$' -bench Memory -benchtime 1x ./bot/worker
func BenchmarkMemory(b *testing.B) {
	if runtime.GOOS != "linux" {
		b.Skip("reads /proc")
	}
	program := os.Getenv("LARDER_PROGRAM")
	if program == "" {
		var err error
		if program, err = os.Executable(); err != nil {
			b.Fatal(err)
		}
	}
	text := script(25 << 20)
	if name := os.Getenv("LARDER_TEXT"); name != "" {
		var err error
		if text, err = os.ReadFile(name); err != nil {
			b.Fatal(err)
		}
	}
	for name, tasks := range map[string][]Task{"br": {SqueezeBr}, "gzip": {SqueezeGzip}, "both": {SqueezeBr, SqueezeGzip}} {
		for _, size := range []int{1 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 2 << 20, 4 << 20, 8 << 20, 25 << 20} {
			b.Run(fmt.Sprintf("%s/%dKiB", name, size>>10), func(b *testing.B) {
				for range b.N {
					p := NewPool(Options{Program: program, Size: 1, Nice: true})
					for range max(1, min(20, 256<<10/size)) { // garbage gathers over small jobs
						for _, task := range tasks {
							if _, err := p.Do(context.Background(), "owner", task, text[:min(size, len(text))]); err != nil {
								b.Fatal(err)
							}
						}
					}
					c := p.idle[0]
					shared := resident(b, c.cmd.Process.Pid, "RssFile")
					b.ReportMetric(resident(b, c.cmd.Process.Pid, "VmHWM")-shared, "peak-MiB")
					b.ReportMetric(shared, "shared-MiB")
					b.ReportMetric(float64(coding.Memory(coding.Brotli, coding.Best, int64(size)))/(1<<20), "reckoned-MiB")
					p.Close()
				}
			})
		}
	}
}

// resident reads a number of a process's status, in MiB.
func resident(t testing.TB, pid int, name string) float64 {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range bytes.Lines(status) {
		if rest, ok := bytes.CutPrefix(line, []byte(name+":")); ok {
			n, err := strconv.ParseFloat(string(bytes.Fields(rest)[0]), 64)
			if err != nil {
				t.Fatal(err)
			}
			return n / 1024
		}
	}
	t.Fatalf("no %s in\n%s", name, status)
	return 0
}

// script returns size bytes that shrink about as a script does.
func script(size int) []byte {
	r := rand.New(rand.NewPCG(15, 1))
	words := make([]string, 4000)
	for i := range words {
		for range 2 + r.IntN(9) {
			words[i] += string(rune('a' + r.IntN(26)))
		}
	}
	marks := []string{" ", ".", "(", ");\n", " = ", "{\n  ", "}\n", ", ", "[0]", "return "}
	var out bytes.Buffer
	for out.Len() < size {
		out.WriteString(words[int(float64(len(words))*r.Float64()*r.Float64()*r.Float64())])
		out.WriteString(marks[r.IntN(len(marks))])
	}
	return out.Bytes()[:size]
}
