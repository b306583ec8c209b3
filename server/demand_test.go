package server_test

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/larder-cdn/larder/server"
)

func TestDemandCountsAnsweredAssets(t *testing.T) {
	store := fixture(t)
	d := server.OpenDemand(server.DemandOptions{Store: store})
	a := newAssets(t, server.Options{Store: store, Demand: d})
	const tiny = "/ajax/libs/demo/1.0.0/tiny.txt"
	for _, step := range []struct {
		method, target string
		header         []string
		status         int
		counts         bool
	}{
		{"GET", tiny, nil, 200, true},
		{"HEAD", tiny, nil, 200, true},
		{"GET", tiny, []string{"If-None-Match", "*"}, 304, true},
		{"GET", tiny, []string{"Range", "bytes=0-1"}, 206, true},
		{"GET", tiny, []string{"Range", "bytes=99-"}, 416, false},
		{"GET", tiny, []string{"If-Match", `"x"`}, 412, false},
		{"GET", tiny, []string{"Accept-Encoding", "*;q=0"}, 406, false},
		{"GET", "/ajax/libs/demo/1.0.0/nothing", nil, 404, false},
		{"GET", "/ajax/libs/demo/0.9.0/demo.js", nil, 410, false},
		{"GET", "/ajax/libs/nothing/1.0.0/tiny.txt", nil, 404, false},
		{"OPTIONS", tiny, nil, 204, false},
		{"POST", tiny, nil, 405, false},
	} {
		before := d.Of("demo")
		wantStatus(t, get(a, step.method, step.target, step.header...), step.status)
		// Nothing fades so fast that it hides a request.
		if counted := d.Of("demo") > before+0.5; counted != step.counts {
			t.Errorf("%s %s with %q was counted: %v, want %v", step.method, step.target, step.header, counted, step.counts)
		}
	}
	if nothing := d.Of("nothing"); nothing != 0 {
		t.Errorf("the demand for a package that there is not is %v", nothing)
	}
}

func TestCountingAllocatesNothing(t *testing.T) {
	store := fixture(t)
	r := httptest.NewRequest("GET", "/ajax/libs/demo/1.0.0/demo.js", nil)
	allocations := func(d *server.Demand) float64 {
		a := newAssets(t, server.Options{Store: store, Demand: d})
		w := &discard{make(http.Header)}
		return testing.AllocsPerRun(100, func() { a.ServeHTTP(w, r) })
	}
	without, with := allocations(nil), allocations(server.OpenDemand(server.DemandOptions{Store: store}))
	if with > without {
		t.Errorf("%v allocations with counting, %v without", with, without)
	}
}
