package api

import (
	"strings"
	"testing"
	"time"

	"github.com/larder-cdn/larder/server/usage"
)

func TestUsage(t *testing.T) {
	now := time.Date(2026, 3, 10, 12, 0, 0, 0, time.UTC)
	s := newService(t)
	u := usage.Open(usage.Options{Store: s.shelf.Store, Now: func() time.Time { return now }})
	s.public.Usage = u
	ask := func(version, path string, times int, bytes int64) {
		c := u.File("jquery", version, "jquery/"+version+"/"+path)
		for range times {
			c.CountRequest()
			c.CountSent(bytes)
		}
		if err := u.Save(); err != nil {
			t.Fatal(err)
		}
	}
	ask("1.9.0", "jquery.js", 2, 10)
	now = now.AddDate(0, 0, 1)
	ask("1.9.0", "jquery.js", 0, 0) // the day turns
	ask("3.7.1", "jquery.min.js", 3, 5)

	equal(t, "usage", s.get("/packages/jquery/usage?days=2").body, `{"from":"2026-03-10","to":"2026-03-11","requests":5,"bytes":35,`+
		`"days":[{"date":"2026-03-10","requests":2,"bytes":20},{"date":"2026-03-11","requests":3,"bytes":15}],`+
		`"versions":[{"version":"3.7.1","requests":3,"bytes":15},{"version":"1.9.0","requests":2,"bytes":20}],`+
		`"files":[{"version":"3.7.1","path":"jquery.min.js","requests":3,"atLeast":3},{"version":"1.9.0","path":"jquery.js","requests":2,"atLeast":2}]}`)
	equal(t, "usage of a version", s.get("/packages/jquery/usage?days=1&version=1.9.0").body, `{"from":"2026-03-11","to":"2026-03-11","requests":0,"bytes":0,`+
		`"days":[{"date":"2026-03-11","requests":0,"bytes":0}],"versions":[],"files":[{"version":"1.9.0","path":"jquery.js","requests":2,"atLeast":2}]}`)
	if body := s.get("/packages/jquery/usage").body; strings.Count(body, `"date"`) != 30 {
		t.Errorf("by default there is %.300s", body)
	}
	for target, want := range map[string]int{
		"/packages/jquery/usage?days=731": 200, "/packages/bare/usage": 200, "/packages/jquery/usage?version=9.9.9": 404, "/packages/nothing/usage": 404,
		"/packages/jquery/usage?days=732": 400, "/packages/jquery/usage?days=0": 400, "/packages/jquery/usage?days=x": 400,
	} {
		if got := s.get(target).status; got != want {
			t.Errorf("%s: %d, want %d", target, got, want)
		}
	}
}
