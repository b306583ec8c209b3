package queue

// grant gives a data centre that has just reported what it may have now, and returns
// what is left for whoever draws. First come those who wait, wherever they are, the
// oldest first; what they leave is for new visitors, by the traffic's shares.
//
// Every grant goes through give, which is where the limits are kept.
func (g *Global) grant(r *reporter, traffic *Traffic) (anywhere int) {
	s := &g.settings
	now := MinuteOf(g.now)
	free := g.grantable(now)
	if free == 0 {
		return 0
	}
	mine, left := g.forWaiting(r, now, free, traffic)
	g.give(r, now, mine)
	if left == 0 {
		return 0
	}

	// new visitors: the share, then what was asked for
	own, anywhere := g.forNew(r, now, left, traffic)
	g.give(r, now, own)
	r.account(now).Own += own
	left -= own
	if r.Want > own && anywhere > 0 {
		ahead := anywhere / (8 * len(g.order)) // so that a burst does not ask for every visitor
		drawn := g.give(r, now, min(anywhere, max(r.Want-own, ahead)))
		r.account(now).Drawn += drawn
		anywhere -= drawn
	}
	// near the turn of a minute an admission is charged to two
	first, last := s.chargeable(r.At)
	for m := first; m <= last; m++ {
		if m != now {
			g.give(r, m, min(r.Want, r.outstanding(now, s.Skew))-r.outstanding(m, s.Skew))
		}
	}
	return anywhere
}

// give grants up to n more charges of a minute, if the limits allow, and returns how
// many. It is the only place where Granted grows:
//
//	Σ granted(minute) ≤ new users per minute
//	Σ bound           ≤ total active users
//
// hold after it, where they did before or where it gave anything.
func (g *Global) give(r *reporter, m Minute, n int) int {
	n = min(n, g.grantable(m))
	if n <= 0 {
		return 0
	}
	r.account(m).Total += n
	return n
}

// grantable is how many more charges of a minute may be granted.
func (g *Global) grantable(m Minute) int {
	s := &g.settings
	total, rate := s.TotalActiveUsers, s.NewUsersPerMinute
	for _, r := range g.reporters {
		total -= r.bound(g.now, s.Skew)
		rate -= r.granted(m).Total
	}
	return max(0, min(total, rate))
}

// forWaiting is how many of the free slots are for those who wait at r, and how many
// are left when everybody who waits has one.
func (g *Global) forWaiting(r *reporter, m Minute, free int, traffic *Traffic) (mine, left int) {
	s := &g.settings
	var lists [][]Bucket
	var outstanding, weights []int
	at := -1
	for _, id := range g.order {
		o := g.reporters[id]
		if len(o.Waiting) == 0 || !g.heard(o) {
			continue
		}
		if o == r {
			at = len(lists)
		}
		list := o.Waiting
		if s.Method == Random { // all are alike
			n := 0
			for _, b := range list {
				n += b.Waiting
			}
			list = []Bucket{{0, n}}
		}
		lists = append(lists, list)
		outstanding = append(outstanding, o.outstanding(m, s.Skew))
		users := 0
		for _, share := range traffic.Shares {
			if share.DataCentre == id.DataCentre {
				users = share.Users
			}
		}
		weights = append(weights, users)
	}
	left = free
	eachBucket(lists, func(_ Minute, need []int) bool {
		total := 0
		for i := range need {
			have := min(need[i], outstanding[i])
			outstanding[i] -= have
			need[i] -= have
			total += need[i]
		}
		parts := need
		if total > left {
			if s.Method == Random {
				copy(weights, need)
			}
			parts = divideCapped(left, weights, need)
			total = left
		}
		if at >= 0 {
			mine += parts[at]
		}
		left -= total
		return left > 0
	})
	return mine, left
}

// forNew is how many of the slots that nobody waits for are r's own, by its share of
// the traffic, and how many it may draw.
func (g *Global) forNew(r *reporter, m Minute, free int, traffic *Traffic) (own, anywhere int) {
	had, drawn, all := 0, 0, free
	for _, o := range g.reporters {
		given := o.granted(m)
		all += given.Own + given.Drawn
		drawn += given.Drawn
		if o.DataCentre == r.DataCentre {
			had += given.Own
		}
	}
	share, rest := traffic.share(all, r.DataCentre)
	own = min(free, max(0, share-had))
	return own, max(0, min(free-own, rest-drawn))
}

func (r *reporter) account(m Minute) *given {
	g := r.Granted[m]
	if g == nil {
		g = &given{}
		r.Granted[m] = g
	}
	return g
}
