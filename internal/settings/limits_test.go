package settings

import (
	"io"
	"log/slog"
	"strings"
	"testing"
	"testing/fstest"
)

func TestControlLimit(t *testing.T) {
	for name, test := range map[string]struct {
		files map[string]string
		want  int64
		file  string
	}{
		"none":        {nil, 0, ""},
		"version 1":   {map[string]string{"proc/self/cgroup": "8:pids:/\n4:memory:/a/b\n", "sys/fs/cgroup/memory/a/b/memory.limit_in_bytes": "536870912\n"}, 512 << 20, "/sys/fs/cgroup/memory/a/b/memory.limit_in_bytes"},
		"around it":   {map[string]string{"proc/self/cgroup": "4:memory:/a/b\n", "sys/fs/cgroup/memory/a/b/memory.limit_in_bytes": "9223372036854771712\n", "sys/fs/cgroup/memory/a/memory.limit_in_bytes": "1048576\n"}, 1 << 20, "/sys/fs/cgroup/memory/a/memory.limit_in_bytes"},
		"no bound":    {map[string]string{"proc/self/cgroup": "4:memory:/\n", "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n"}, 0, ""},
		"version 2":   {map[string]string{"proc/self/cgroup": "0::/x.slice/y\n", "sys/fs/cgroup/x.slice/y/memory.max": "max\n", "sys/fs/cgroup/x.slice/memory.max": "2097152\n"}, 2 << 20, "/sys/fs/cgroup/x.slice/memory.max"},
		"high":        {map[string]string{"proc/self/cgroup": "0::/x\n", "sys/fs/cgroup/x/memory.max": "2097152\n", "sys/fs/cgroup/x/memory.high": "1048576\n"}, 1 << 20, "/sys/fs/cgroup/x/memory.high"},
		"a container": {map[string]string{"proc/self/cgroup": "0::/../elsewhere\n", "sys/fs/cgroup/memory.max": "2097152\n"}, 2 << 20, "/sys/fs/cgroup/memory.max"},
	} {
		t.Run(name, func(t *testing.T) {
			root := fstest.MapFS{}
			for path, text := range test.files {
				root[path] = &fstest.MapFile{Data: []byte(text)}
			}
			if limit, file := cgroupMemoryLimit(root); limit != test.want || file != test.file {
				t.Errorf("%d by %q, want %d by %q", limit, file, test.want, test.file)
			}
		})
	}
}

// Defaults are reduced to fit, and values that were given are not.
func TestFitMemory(t *testing.T) {
	root := fstest.MapFS{
		"proc/self/cgroup":         {Data: []byte("0::/\n")},
		"sys/fs/cgroup/memory.max": {Data: []byte("536870912\n")},
	}
	for name, test := range map[string]struct {
		environ []string
		fits    bool
	}{"defaults": {nil, true}, "asked for": {[]string{"LARDER_CACHE=300MiB"}, false}} {
		t.Run(name, func(t *testing.T) {
			s := New()
			if err := s.Load(test.environ); err != nil {
				t.Fatal(err)
			}
			cache := s.Cache
			var log strings.Builder
			s.FitMemory(true, root, slog.New(slog.NewTextHandler(io.Writer(&log), nil)))
			if budget := s.MemoryBudget(true); (budget <= 384<<20) != test.fits {
				t.Errorf("the settings come to %d MiB of 512", budget>>20)
			}
			if (s.Cache == cache) == test.fits {
				t.Errorf("the cache has %d MiB", s.Cache>>20)
			}
			if !strings.Contains(log.String(), "limit=536870912") || strings.Contains(log.String(), "WARN") == test.fits {
				t.Errorf("the log: %s", &log)
			}
		})
	}
}
