package kvstore

import (
	"bytes"
	"errors"
	"io"
	"testing"

	"github.com/cockroachdb/pebble/v2/record"
)

// FuzzChunks holds the reader of chunks against Pebble's: each record that it reads is what
// Pebble reads there, and where it finds a clean end Pebble does too.
func FuzzChunks(f *testing.F) {
	for _, log := range []bool{false, true} {
		var file bytes.Buffer
		if log {
			w := record.NewLogWriter(&file, 7, record.LogWriterConfig{WriteWALSyncOffsets: func() bool { return true }})
			for n := range 5 {
				if _, err := w.WriteRecord(noise(uint64(n), 1+n*n*2500)); err != nil {
					f.Fatal(err)
				}
			}
			if err := w.Close(); err != nil {
				f.Fatal(err)
			}
		} else {
			w := record.NewWriter(&file)
			for n := range 5 {
				if _, err := w.WriteRecord(noise(uint64(n), 1+n*n*2500)); err != nil {
					f.Fatal(err)
				}
			}
			if err := w.Close(); err != nil {
				f.Fatal(err)
			}
		}
		f.Add(file.Bytes(), log, 0, byte(0))
		f.Add(file.Bytes(), log, 3000, byte(1))
		f.Add(file.Bytes()[:40_000], log, 0, byte(0))
	}
	f.Fuzz(func(t *testing.T, file []byte, log bool, at int, flip byte) {
		if at >= 0 && at < len(file) {
			file = bytes.Clone(file)
			file[at] ^= flip
		}
		number := uint64(0)
		if log {
			number = 7
		}
		reader := record.NewReader(bytes.NewReader(file), 7)
		if !log {
			reader = record.NewReader(bytes.NewReader(file), 0)
		}
		sound, err := newChunkReader(bytes.NewReader(file), number).readRecords(0, func(got []byte) error {
			r, err := reader.Next()
			if err != nil {
				t.Fatalf("a record that Pebble does not have: %v", err)
			}
			if want, err := io.ReadAll(r); err != nil || !bytes.Equal(got, want) {
				t.Fatalf("a record differs: %v", err)
			}
			_ = newVersion().applyEdit(got)
			return nil
		})
		var bad *badChunk
		switch {
		case sound < 0 || sound > int64(len(file)):
			t.Errorf("sound up to %d of %d bytes", sound, len(file))
		case err == nil:
			if _, err := reader.Next(); err != io.EOF {
				t.Errorf("a clean end, and Pebble has %v", err)
			}
		case !errors.As(err, &bad):
			t.Error(err)
		}
	})
}
