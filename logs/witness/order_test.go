package witness

import (
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"
)

// An answer is a ResponseWriter that notes what was on the disk when the first byte left.
type answer struct {
	*httptest.ResponseRecorder
	disk *[]byte
	had  []byte
}

func (a *answer) Write(data []byte) (int, error) {
	if a.had == nil {
		a.had = append([]byte{}, *a.disk...)
	}
	return a.ResponseRecorder.Write(data)
}

// A cosignature leaves only when the checkpoint is on the disk; where that fails, nothing leaves and nothing was signed.
func TestAnAnswerWaitsForTheDisk(t *testing.T) {
	private, key, err := note.GenerateKey(rand.Reader, "log.example/one")
	if err != nil {
		t.Fatal(err)
	}
	signer, err := note.NewSigner(private)
	if err != nil {
		t.Fatal(err)
	}
	w, err := Open(Options{Folder: t.TempDir(), Name: "witness.example", Logs: []string{key}})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	var disk []byte // what is there when the power fails
	broken := errors.New("the disk is broken")
	var fails error
	replace := w.folder.replace
	w.folder.replace = func(path string, data []byte, mode fs.FileMode) error {
		if fails != nil {
			return fails
		}
		disk = append([]byte{}, data...)
		return replace(path, data, mode)
	}
	checkpoint := func(entry string) []byte {
		signed, err := note.Sign(&note.Note{Text: fmt.Sprintf("log.example/one\n1\n%s\n", tlog.RecordHash([]byte(entry)))}, signer)
		if err != nil {
			t.Fatal(err)
		}
		return signed
	}
	tell := func(checkpoint []byte) *answer {
		a := &answer{ResponseRecorder: httptest.NewRecorder(), disk: &disk}
		w.ServeHTTP(a, httptest.NewRequest(http.MethodPost, "/add-checkpoint", strings.NewReader("old 0\n\n"+string(checkpoint))))
		return a
	}
	fails = broken
	if got := tell(checkpoint("a")); got.Code != http.StatusInternalServerError || strings.Contains(got.Body.String(), "—") {
		t.Errorf("with a broken disk: %d, %s", got.Code, got.Body)
	}
	fails = nil
	if got := tell(checkpoint("b")); got.Code != http.StatusOK { // what was not kept was not signed, so another one may be
		t.Fatalf("%d, %s", got.Code, got.Body)
	} else if !bytes.HasPrefix(got.had, checkpoint("b")) || !bytes.HasSuffix(got.had, got.Body.Bytes()) {
		t.Errorf("when the answer left, the disk had\n%s", got.had)
	}
	if got := tell(checkpoint("a")); got.Code != http.StatusConflict {
		t.Errorf("another history: %d, %s", got.Code, got.Body)
	}
}
