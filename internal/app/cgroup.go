package app

import (
	"io/fs"
	"log/slog"
	"math"
	"path"
	"strconv"
	"strings"

	"github.com/larder-cdn/larder/internal/settings"
)

// controlLimit returns how much memory the control group of the process may have, and the file that says so: the least
// of its own and of those around it, of version 1 or 2. root is the root of the file system.
func controlLimit(root fs.FS) (limit int64, file string) {
	groups, err := fs.ReadFile(root, "proc/self/cgroup")
	if err != nil {
		return 0, ""
	}
	least := int64(math.MaxInt64)
	look := func(at string) {
		text, err := fs.ReadFile(root, at)
		if err != nil {
			return
		}
		n, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64) // not "max"
		if err == nil && n > 0 && n < least && n < 1<<60 {                  // version 1 says a number of exabytes for none
			least, file = n, "/"+at
		}
	}
	for line := range strings.Lines(string(groups)) {
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(parts) != 3 {
			continue
		}
		var mounts, names []string
		switch {
		case parts[0] == "0" && parts[1] == "":
			mounts, names = []string{"sys/fs/cgroup", "sys/fs/cgroup/unified"}, []string{"memory.max", "memory.high"}
		case strings.Contains(","+parts[1]+",", ",memory,"):
			mounts, names = []string{"sys/fs/cgroup/memory"}, []string{"memory.limit_in_bytes"}
		}
		// In a container the group may be the root of what is mounted.
		for group := path.Clean("/" + parts[2]); ; group = path.Dir(group) {
			for _, mount := range mounts {
				for _, name := range names {
					look(path.Join(mount, group, name))
				}
			}
			if group == "/" {
				break
			}
		}
	}
	if file == "" {
		return 0, ""
	}
	return least, file
}

// otherMemoryOf and memTableOf are otherMemory, and what the store gathers before it writes, under a limit; 0 is none.
func otherMemoryOf(limit int64) int64 {
	if limit == 0 {
		return otherMemory
	}
	return min(otherMemory, limit/4)
}

func memTableOf(limit int64) int64 {
	if limit == 0 {
		return 0 // the default
	}
	return max(1*settings.Mebibyte, min(32*settings.Mebibyte, limit/64))
}

// fitMemory makes what was not asked for fit into the memory that the control group of the process may have. A quarter of
// that is left for what Go does not manage: the program itself, buffers of sockets, files that are read.
func fitMemory(s *settings.Settings, serve bool, root fs.FS, logger *slog.Logger) {
	limit, file := controlLimit(root)
	if limit == 0 {
		return
	}
	s.MemoryLimit = limit
	have := limit / 4 * 3
	now := otherMemoryOf(limit) + 4*memTableOf(limit) // the store has up to four
	shares := map[string]*int64{"memory": &s.Memory, "store-cache": &s.StoreCache}
	if serve {
		shares["cache"], shares["sending"] = &s.Cache, &s.Sending
	}
	var flexible int64
	for name, share := range shares {
		if s.Given(name) {
			now += *share
			delete(shares, name)
		} else {
			flexible += *share
		}
	}
	part := min(1, float64(max(0, have-now))/float64(max(1, flexible)))
	for _, share := range shares {
		*share = max(16*settings.Mebibyte, int64(part*float64(*share)))
		now += *share
	}
	log := logger.Info
	if now > have {
		log = logger.Warn
	}
	log("the memory of this process is bounded by its control group", "limit", limit, "by", file, "settings", now,
		"cache", s.Cache, "sending", s.Sending, "store-cache", s.StoreCache, "memory", s.Memory)
}
