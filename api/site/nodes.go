package site

import (
	"fmt"

	"github.com/larder-cdn/larder/logs/cluster"
)

// nodesPage is the data of the page of a cluster's nodes.
type nodesPage struct {
	Nodes   []shownNode
	Problem string // why nodes may be missing, "" if none is
}

// A shownNode is a node as the page displays it.
type shownNode struct {
	cluster.Member
	Late   string  // how far it is behind, in words
	Ago    float64 // seconds since it reported this
	Silent bool    // it has not reported for over 90 s, see [cluster.Member.Silent]
}

// nodesPage returns the page of the cluster's nodes and how far each is behind. If the nodes cannot be read, the page says
// why and has those that are known; the error is always nil. It checks no permission; internal/app offers the page to
// operators only.
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
		case m.Role == cluster.Leader:
			late = "–"
		case m.Role == cluster.Former:
			late = "unknown"
		}
		p.Nodes = append(p.Nodes, shownNode{m, late, max(0, s.now().Sub(m.Heard).Seconds()), m.Silent(s.now())})
	}
	return &pageAnswer{
		view: "nodes", Title: "Nodes",
		Description: "Which node of the cluster publishes, and how far behind the others are.",
		Data:        p,
	}, nil
}
