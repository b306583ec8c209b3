package site

import (
	"fmt"
	"time"
)

// A Node is one of a cluster, as it reported itself.
type Node struct {
	Name, Role, Version string
	Entries             int64     // of its log
	Newest              time.Time // the time of the last entry
	Lacks               int64     // signed entries that it lacks, as far as this node knows
	Behind              float64   // seconds since it had all entries; -1 if it never had
	Since               time.Time // when it took up its role
	Heard               time.Time // when it reported this
	Leads, Former       bool      // it publishes, or did
	Silent              bool      // it has not reported for so long that it does not run, or does not reach the bucket
	Problem             string
	// Evidence is the file there that proves that the log has forked.
	Evidence string
}

// nodesPage shows the nodes of a cluster.
type nodesPage struct {
	Nodes   []shownNode
	Problem string // why others are missing
}

// A shownNode is one of them.
type shownNode struct {
	Node
	Late string // how far behind it is
	Ago  float64
}

// nodesPage returns the page of the cluster's nodes and how far each is behind, for the operator. If the nodes cannot be
// read, the page says why.
func (s *Site) nodesPage(q *request) (*pageAnswer, error) {
	members, err := s.options.Nodes(q.Context())
	var p nodesPage
	if err != nil {
		p.Problem = err.Error()
	}
	for _, m := range members {
		late := fmt.Sprintf("%.0f s, %s entries", m.Behind, formatNumber(int(m.Lacks)))
		switch {
		case m.Behind < 0:
			late = "has yet to catch up"
		case m.Leads:
			late = "–"
		case m.Former:
			late = "unknown"
		}
		p.Nodes = append(p.Nodes, shownNode{m, late, max(0, s.now().Sub(m.Heard).Seconds())})
	}
	return &pageAnswer{
		view: "nodes", title: "Nodes",
		description: "Which node of the cluster publishes, and how far behind the others are.",
		data:        p,
	}, nil
}
