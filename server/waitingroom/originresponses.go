package waitingroom

import (
	"maps"
	"math"
	"net/http"
	"net/netip"
	"slices"
	"time"

	"github.com/larder-cdn/larder/internal/requests"
)

// OriginResponses are what nodes have measured of the responses of the site behind a room. Those of several nodes can be added.
type OriginResponses struct {
	Total, Errors int
	// Times is how many responses took how long until they started: by timeClass.
	Times map[int]int `json:",omitempty"`
	// Failed are different clients that got an error, at most mostFailed.
	Failed []netip.Prefix `json:",omitempty"`
}

// mostFailed is how many clients that got an error are of interest.
const mostFailed = 5

// timeClasses is how many classes of times there are while times double, and mostTimeClass the highest class: about an hour.
const (
	timeClasses   = 16
	mostTimeClass = 32 * timeClasses
)

// timeClass returns the number of the class to which a response time belongs: the times in a class differ by less than 5 %.
func timeClass(took time.Duration) int {
	return min(mostTimeClass, int(timeClasses*math.Log2(1+float64(max(0, took.Microseconds())))))
}

// Count adds a response to the client at the address remote, which has a port. took is how long the site took to start it. A
// status from 500 on is an error.
func (r *OriginResponses) Count(took time.Duration, status int, remote string) {
	r.Total++
	if r.Times == nil {
		r.Times = map[int]int{}
	}
	r.Times[timeClass(took)]++
	if status >= http.StatusInternalServerError {
		r.Errors++
		from, _ := requests.ClientOf(remote)
		r.Failed = addFailedClient(r.Failed, from)
	}
}

// addFailedClient returns failed with the client that received an error, unless that is there or failed has mostFailed clients
// already.
func addFailedClient(failed []netip.Prefix, from netip.Prefix) []netip.Prefix {
	if len(failed) < mostFailed && !slices.Contains(failed, from) {
		failed = append(failed, from)
	}
	return failed
}

// Add adds the responses that another node has measured, which do not change. It ignores values that no honest node sends: all of
// them if the totals are such.
func (r *OriginResponses) Add(other *OriginResponses) {
	if other.Total < 0 || other.Total > mostMeasured || other.Errors < 0 || other.Errors > other.Total || len(other.Times) > mostTimeClass+1 {
		return
	}
	r.Total, r.Errors = r.Total+other.Total, r.Errors+other.Errors
	if r.Times == nil && other.Times != nil {
		r.Times = map[int]int{}
	}
	for class, n := range other.Times {
		if class >= 0 && class <= mostTimeClass && n > 0 && n <= other.Total {
			r.Times[class] += n
		}
	}
	for _, from := range other.Failed[:min(len(other.Failed), mostFailed)] {
		r.Failed = addFailedClient(r.Failed, from)
	}
}

// mostMeasured is how many responses a node may report at a time.
const mostMeasured = 1 << 30

// Percentile returns the time that a share of the responses, from 0 to 1, did not exceed, rounded up by less than 5 %; 0 if no
// times are known.
func (r *OriginResponses) Percentile(share float64) time.Duration {
	left := int(math.Ceil(share * float64(r.Total)))
	for _, class := range slices.Sorted(maps.Keys(r.Times)) {
		if left -= r.Times[class]; left <= 0 {
			return time.Duration(math.Exp2(float64(class+1)/timeClasses)-1) * time.Microsecond
		}
	}
	return 0
}
