package npmtest

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"io"
	"maps"
	"slices"
	"time"
)

// Pack makes a tarball as "npm pack" does: everything below package/, package.json first. The same files
// always give the same bytes.
func Pack(name, version string, files map[string]string) []byte {
	const manifest = "package.json"
	all := maps.Clone(files)
	if all == nil {
		all = make(map[string]string)
	}
	if _, ok := all[manifest]; !ok {
		data, _ := json.Marshal(map[string]string{"name": name, "version": version})
		all[manifest] = string(data)
	}
	var buf bytes.Buffer
	zw := gzip.NewWriter(&buf)
	tw := tar.NewWriter(zw)
	write := func(path string) {
		// The time that npm gives all files.
		header := &tar.Header{Name: "package/" + path, Mode: 0o644, Size: int64(len(all[path])), ModTime: time.Date(1985, 10, 26, 8, 15, 0, 0, time.UTC)}
		if err := tw.WriteHeader(header); err != nil {
			panic("npmtest: " + path + ": " + err.Error())
		}
		io.WriteString(tw, all[path])
	}
	write(manifest)
	for _, path := range slices.Sorted(maps.Keys(all)) {
		if path != manifest {
			write(path)
		}
	}
	tw.Close()
	zw.Close()
	return buf.Bytes()
}
