package lane

import (
	"maps"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"
)

// The table in the package comment is the one that the code goes by.
func TestTableIsFollowed(t *testing.T) {
	text, err := os.ReadFile("state.go")
	if err != nil {
		t.Fatal(err)
	}
	documented, from := make(map[[2]string]bool), ""
	_, states, _ := strings.Cut(string(text), "// # States")
	for _, row := range regexp.MustCompile(`(?m)^//\t.*$`).FindAllString(states, -1)[1:] {
		cells := strings.Fields(row[len("//\t"):])
		if row[len("//\t")] != ' ' {
			from = cells[0]
		}
		if to := cells[len(cells)-1]; len(row) > len("//\t")+80 {
			documented[[2]string{from, to}] = true
		}
	}
	if followed := Transitions(); !maps.Equal(documented, followed) {
		t.Errorf("the table has %v, and the code follows %v", documented, followed)
	}
}

// No change happens that is not in the table, and none from a state that has passed.
func TestMove(t *testing.T) {
	table := Transitions()
	reached := map[state]bool{opening: true}
	for range closing {
		for from := opening; from <= closing; from++ {
			for to := opening; to <= closing; to++ {
				var told [][2]string
				l := lifecycle{moved: func(from, to state) { told = append(told, [2]string{from.String(), to.String()}) }}
				l.word.Store(int64(from))
				transition := [2]string{from.String(), to.String()}
				if panics(func() { l.moveTo(to) }) == table[transition] || (l.state() == to && from != to) != table[transition] {
					t.Errorf("from %v to %v leads to %v", from, to, l.state())
				}
				if !table[transition] {
					continue
				}
				if len(told) != 1 || told[0] != transition {
					t.Errorf("from %v to %v is told as %v", from, to, told)
				}
				if l.word.Store(int64(handed)); l.move(from, to) || l.state() != handed {
					t.Errorf("from %v to %v happens to one that is handed over", from, to)
				}
				reached[to] = reached[to] || reached[from]
			}
		}
	}
	if len(reached) != int(closing)+1 {
		t.Errorf("only %v are reached", reached)
	}
}

func panics(f func()) (did bool) {
	defer func() { did = recover() != nil }()
	f()
	return false
}

// A connection that began to wait at another time is in another state.
func TestStateHasItsTime(t *testing.T) {
	now := time.Now()
	for _, waiting := range []state{fresh, idle} {
		early, late := waiting.withStart(now.Add(-time.Hour)), waiting.withStart(now)
		if early >= late || early.name() != waiting || late.name() != waiting || !late.isWaiting() {
			t.Errorf("%v since an hour is %d and %v, since now %d and %v", waiting, early, early, late, late)
		}
		var l lifecycle
		l.word.Store(int64(late))
		if l.move(early, closing) || !l.move(late, closing) {
			t.Errorf("%v since now is taken for one since an hour", waiting)
		}
	}
}
