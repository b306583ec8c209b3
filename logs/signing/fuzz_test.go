package signing

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/mod/sumdb/tlog"

	"github.com/larder-cdn/larder/logs"
)

// FuzzCheckpointFile changes what the checkpoint file holds: whatever is accepted
// says what was signed.
func FuzzCheckpointFile(f *testing.F) {
	const origin = "log.example"
	k, err := parseKey([]byte("PRIVATE+KEY+log.example+cae7438d+AbOsgXLTKJZf8FtYBAdTvwSPxEK0WJ1/ErUcyCcPzZgS"))
	if err != nil {
		f.Fatal(err)
	}
	want := make(map[logs.Checkpoint]bool)
	for size := range int64(3) {
		c := logs.Checkpoint{Size: size << 20, Root: tlog.RecordHash([]byte{byte(size)})}
		signed, err := signCheckpoint(origin, c, keyring{k}, time.Unix(1_800_000_000, 0))
		if err != nil {
			f.Fatal(err)
		}
		want[c] = true
		f.Add(signed.Note)
		f.Add([]byte(strings.ReplaceAll(string(signed.Note), "\n", "\r\n")))
		f.Add(append(signed.Note, signed.Note...))
		f.Add(append(signed.Note, "— witness.example AAAAAAAA\n"...))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		signed, _, err := openNote(data, origin, keyring{k}.verifiers())
		if err == nil && !want[signed.Checkpoint] {
			t.Errorf("%v was never signed", signed.Checkpoint)
		}
	})
}

// FuzzBody has a checkpoint's text accepted in one form only.
func FuzzBody(f *testing.F) {
	root := tlog.RecordHash(nil).String()
	for _, size := range []string{"0", "1", "12", "012", "+1", "-1", "9223372036854775807", "9223372036854775808", "18446744073709551616"} {
		f.Add("log.example\n" + size + "\n" + root + "\n")
	}
	f.Add("log.example\n1\n" + root + "\nmore\n")
	f.Add("log.example\n1\nAAAA\n")
	f.Fuzz(func(t *testing.T, text string) {
		c, err := parseBody(text, "log.example")
		if err != nil {
			return
		}
		if c.Size < 0 {
			t.Fatalf("%q has the size %d", text, c.Size)
		}
		if again := "log.example\n" + strconv.FormatInt(c.Size, 10) + "\n" + c.Root.String() + "\n"; again != text {
			t.Errorf("%q was taken for %q", text, again)
		}
	})
}

// FuzzKey has no bytes in a key file do worse than to be refused.
func FuzzKey(f *testing.F) {
	f.Add([]byte("PRIVATE+KEY+log.example+cae7438d+AbOsgXLTKJZf8FtYBAdTvwSPxEK0WJ1/ErUcyCcPzZgS\n"))
	f.Add([]byte("PRIVATE+KEY+log.example+2f0e9e55+AQ=="))
	f.Add([]byte("PRIVATE+KEY++++"))
	f.Fuzz(func(t *testing.T, data []byte) {
		k, err := parseKey(data)
		if err != nil {
			return
		}
		sig, err := k.signer.Sign([]byte("text\n"))
		if err != nil || !k.verifier.Verify([]byte("text\n"), sig) {
			t.Errorf("%q: its signature does not verify: %v", data, err)
		}
	})
}
