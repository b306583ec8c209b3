package h2

import "time"

// A frame that has neither a request nor a part of one costs the server more than the client, so it takes from an allowance.
// The allowance grows with time, and with the bytes of responses that the client receives, because honest clients send such
// frames for these.
const (
	// allowance is the most that there is of it, and there at first.
	allowance = 4000
	// allowancePerSecond is how much it grows with time.
	allowancePerSecond = 1000
	// frameCost is what PING, SETTINGS, PRIORITY, PRIORITY_UPDATE, WINDOW_UPDATE, CONTINUATION,
	// unknown frames and DATA without data cost.
	frameCost = 1
	// resetCost is what a stream costs that ends before its response does, whether the client
	// resets it or makes the server do so: 400 at once, 100 a second.
	resetCost = 10
	// dataCredit and answerCredit are what a frame of a response brings, and the end of one.
	dataCredit, answerCredit = 16, resetCost
)

// A frameBudget is what a client may still cost.
type frameBudget struct {
	left  int
	since time.Time
}

// earn adds n to the budget, up to allowance.
func (c *frameBudget) earn(n int) { c.left = min(c.left+n, allowance) }

// spend subtracts n from the budget. If the result is below 0, it adds what has accrued since the last time it did so. It
// reports whether the budget is 0 or more then. n stays subtracted in any case.
func (c *frameBudget) spend(n int, now time.Time) bool {
	if c.left -= n; c.left >= 0 {
		return true
	}
	if passed := now.Sub(c.since); passed > 0 {
		c.since = now
		c.earn(int(min(passed, time.Hour) * allowancePerSecond / time.Second))
	}
	return c.left >= 0
}
