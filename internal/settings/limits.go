package settings

import (
	"io/fs"
	"log/slog"
	"math"
	"path"
	"strconv"
	"strings"
	"syscall"

	"github.com/larder-cdn/larder/kvstore"
)

// cgroupMemoryLimit returns the memory limit of the process's control group (version 1 or 2) in bytes, and the file that sets it; 0
// for none. The least limit of the group and of those around it counts. root is the root of the file system.
func cgroupMemoryLimit(root fs.FS) (limit int64, file string) {
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

// otherMemory is for what no setting bounds: the index of search and pages, connections and their goroutines, and the
// garbage between two collections.
const otherMemory = 256 * Mebibyte

// otherMemory returns how many bytes of the process's memory are reserved for uses that no setting limits: 256 MiB, or a quarter of
// the memory limit if that is less.
func (s *Settings) otherMemory() int64 {
	if s.MemoryLimit == 0 {
		return otherMemory
	}
	return min(otherMemory, s.MemoryLimit/4)
}

// MemTableBytes returns how many bytes the store collects in memory before it writes them into a table; 0 for the default.
func (s *Settings) MemTableBytes() int64 {
	if s.MemoryLimit == 0 {
		return 0
	}
	return max(1*Mebibyte, min(32*Mebibyte, s.MemoryLimit/64))
}

// MemoryBudget returns how much memory Go should use in a process with these settings, in bytes. serve says that the process
// serves, so that the cache of files and the memory of responses being sent count.
func (s *Settings) MemoryBudget(serve bool) int64 {
	budget := s.otherMemory() + s.Memory + kvstore.Options{CacheBytes: s.StoreCache, MemTableBytes: s.MemTableBytes()}.HeapBytes()
	if serve {
		budget += s.Cache + s.Sending
	}
	return budget
}

// FitMemory reduces sizes of memory that the operator has not set, so that the process fits into the memory limit of its control
// group, which it reads below root, the root of the file system. It makes none smaller than 16 MiB. It sets MemoryLimit, and
// MemoryLacking to the number of bytes that do not fit. It logs that, as a warning if some do not fit, and does nothing without a
// limit. serve is as for MemoryBudget. A quarter of the limit stays free for what Go does not manage: the program itself, buffers of
// sockets, files that are read.
func (s *Settings) FitMemory(serve bool, root fs.FS, logger *slog.Logger) {
	limit, file := cgroupMemoryLimit(root)
	if limit == 0 {
		return
	}
	s.MemoryLimit = limit
	have := limit / 4 * 3
	now := s.otherMemory() + 4*s.MemTableBytes() // the store has up to four
	shares := map[string]*int64{"memory": &s.Memory, "store-cache": &s.StoreCache}
	if serve {
		shares["cache"], shares["sending"] = &s.Cache, &s.Sending
	}
	var flexible int64
	for name, share := range shares {
		if s.IsSet(name) {
			now += *share
			delete(shares, name)
		} else {
			flexible += *share
		}
	}
	part := min(1, float64(max(0, have-now))/float64(max(1, flexible)))
	for _, share := range shares {
		*share = max(16*Mebibyte, int64(part*float64(*share)))
		now += *share
	}
	s.MemoryLacking = max(0, now-have)
	log := logger.Info
	if now > have {
		log = logger.Warn
	}
	log("the memory of this process is bounded by its control group", "limit", limit, "by", file, "settings", now,
		"cache", s.Cache, "sending", s.Sending, "store-cache", s.StoreCache, "memory", s.Memory)
}

// maxOpenFiles returns how many files the process may have open; false if that is not known.
func maxOpenFiles() (uint64, bool) {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return 0, false
	}
	return uint64(limit.Cur), true
}

// reservedFiles returns how many of the most files that the process may have open are reserved for uses other than public
// connections: the store's tables (up to 1000), downloads, child processes and the other listeners. It is half of them at most.
func reservedFiles(most uint64) uint64 { return min(most/2, 1536) }

// FitConnections reduces the default number of public connections to what the limit of open files of the process allows, and logs
// that. It returns a [Mistake] if the operator has set a number that does not fit. It does nothing if the limit is not known.
func (s *Settings) FitConnections(logger *slog.Logger) error {
	most, ok := maxOpenFiles()
	if !ok {
		return nil
	}
	fit := max(1, most-reservedFiles(most))
	if uint64(s.MaxConnections) <= fit {
		return nil
	}
	if s.IsSet("max-connections") {
		return Mistakef("%s: %d connections do not fit into the limit of %d open files, of which %d are needed for other things; raise the limit (ulimit -n, LimitNOFILE=) or ask for %d",
			s.Origin("max-connections"), s.MaxConnections, most, most-fit, fit)
	}
	logger.Warn("fewer public connections than by default, because the limit of open files is low; raise it (ulimit -n, LimitNOFILE=)",
		"connections", fit, "default", s.MaxConnections, "files", most)
	s.MaxConnections = int(fit)
	return nil
}
