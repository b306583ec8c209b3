package text

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestDiffLikeDiff compares our hunks with those of `diff -u`.
func TestDiffLikeDiff(t *testing.T) {
	command, err := exec.LookPath("diff")
	if err != nil {
		t.Skip(err)
	}
	folder := t.TempDir()
	names := regexp.MustCompile(`(?m)\A--- .*\n\+\+\+ .*\n`)
	reference := func(before, after string) string {
		for name, text := range map[string]string{"a": before, "b": after} {
			if err := os.WriteFile(filepath.Join(folder, name), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		out, _ := exec.Command(command, "-u", filepath.Join(folder, "a"), filepath.Join(folder, "b")).Output() // it fails where they differ
		return names.ReplaceAllString(string(out), "")
	}
	r := rand.New(rand.NewPCG(3, 4))
	for round := range 150 {
		kinds := 1000 // of lines; few of them repeat as braces do
		if round%2 == 1 {
			kinds = 30
		}
		var lines []string
		for range 60 {
			lines = append(lines, fmt.Sprintf("line %d", r.IntN(kinds)))
		}
		changed := append([]string{}, lines...)
		for range 1 + r.IntN(4) {
			i := r.IntN(len(changed))
			switch r.IntN(3) {
			case 0:
				changed[i] = fmt.Sprintf("changed %d", r.Int())
			case 1:
				changed = append(changed[:i], changed[i+1:]...)
			default:
				changed = append(changed[:i], append([]string{fmt.Sprintf("line %d", r.IntN(kinds))}, changed[i:]...)...)
			}
		}
		before, after := strings.Join(lines, "\n")+"\n", strings.Join(changed, "\n")
		if round%3 != 0 {
			after += "\n"
		}
		got := Diff(before, after)
		if want := reference(before, after); got != want {
			t.Fatalf("round %d: the diff is\n%s\nwant\n%s", round, got, want)
		}
	}
}
