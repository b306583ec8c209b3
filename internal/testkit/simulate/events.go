package simulate

import "time"

type eventKind uint8

const (
	userVisits eventKind = iota
	streamOpens
	sessionEnds
	workerReports
	dcReports
	reportArrives
	stateArrives
	drawTimesOut
	failureBegins
	failureEnds
	sample
)

// An event is what happens at one moment; a and b are its subjects.
type event struct {
	at   time.Duration
	kind eventKind
	a, b int32
}

// events is a heap by time. container/heap would spend most of a run in calls through its
// interface.
type events []event

// push adds an event to the heap.
func (h *events) push(e event) {
	*h = append(*h, e)
	for i := len(*h) - 1; i > 0; {
		parent := (i - 1) / 2
		if (*h)[parent].at <= e.at {
			break
		}
		(*h)[i], (*h)[parent] = (*h)[parent], e
		i = parent
	}
}

// pop removes the earliest event from the heap and returns it. The heap must not be empty.
func (h *events) pop() event {
	old := *h
	top, last := old[0], old[len(old)-1]
	old = old[:len(old)-1]
	*h = old
	i := 0
	for {
		child := 2*i + 1
		if child >= len(old) {
			break
		}
		if child+1 < len(old) && old[child+1].at < old[child].at {
			child++
		}
		if last.at <= old[child].at {
			break
		}
		old[i] = old[child]
		i = child
	}
	if len(old) > 0 {
		old[i] = last
	}
	return top
}
