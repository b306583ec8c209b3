package site

import "strconv"

// A pager is the part of a long list that one page shows.
type pager struct {
	Page, Pages int
	First, Last int // counted from 1; First is 0 where the list is empty
	Total       int
	// Previous and Next are addresses, "" at the ends.
	Previous, Next string
	// What tells one pager from another for who does not see where it stands.
	What string
}

// newPager returns the page of that number, or the last one where there are fewer.
// Address makes the address of another one.
func newPager(total, each, page int, what string, address func(page string) string) pager {
	p := pager{Total: total, Pages: max(1, (total+each-1)/each), What: what}
	p.Page = min(max(page, 1), p.Pages)
	p.First, p.Last = min((p.Page-1)*each+1, total), min(p.Page*each, total)
	at := func(n int) string {
		if n == 1 {
			return address("")
		}
		return address(strconv.Itoa(n))
	}
	if p.Page > 1 {
		p.Previous = at(p.Page - 1)
	}
	if p.Page < p.Pages {
		p.Next = at(p.Page + 1)
	}
	return p
}

// part returns the elements of all that the page shows.
func part[T any](p pager, all []T) []T {
	if p.Total == 0 {
		return nil
	}
	return all[p.First-1 : p.Last]
}
