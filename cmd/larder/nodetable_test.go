package main

import (
	"bytes"
	"testing"
	"time"

	"github.com/larder-cdn/larder/logs/cluster"
)

func TestNodes(t *testing.T) {
	now := time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)
	var out bytes.Buffer
	err := writeNodes(&out, []cluster.Member{
		{Name: "https://a:1", Role: cluster.Leader, Since: now.Add(-time.Hour), Entries: 5, Newest: now.Add(-time.Minute), Heard: now},
		{Name: "https://b:1", Role: cluster.Follower, Since: now.Add(-time.Hour), Behind: -1, Heard: now.Add(-40 * time.Second), Problem: "the bucket is away", Evidence: "fork.json"},
		{Name: "https://c:1", Role: cluster.Former, Since: now.Add(-time.Hour), Entries: 5, Newest: now.Add(-time.Minute), Heard: now.Add(-2 * time.Minute)},
	}, now)
	const want = `NODE         ROLE           SINCE                 ENTRIES  NEWEST                BEHIND               LAST REPORT
https://a:1  leader         2026-05-01T11:00:00Z  5        2026-05-01T11:59:00Z  0 s, 0 entries       0s ago
https://b:1  follower       2026-05-01T11:00:00Z  0        none                  has yet to catch up  40s ago
https://c:1  former leader  2026-05-01T11:00:00Z  5        2026-05-01T11:59:00Z  unknown              2m0s ago
https://b:1: the bucket is away
https://b:1: the log has forked; fork.json there proves it
https://c:1: no report since 2026-05-01T11:58:00Z; it does not run, or does not reach the bucket
`
	if err != nil || out.String() != want {
		t.Errorf("%v\n%s\nwant\n%s", err, out.String(), want)
	}
}
