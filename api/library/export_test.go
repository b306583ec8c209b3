package library

// BreakSearch has the search index fail, as one that is damaged does.
func (x *Index) BreakSearch() { x.search.close() }
