package site

import (
	"encoding/xml"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/larder-cdn/larder/server/usage"
)

func TestUsageChart(t *testing.T) {
	r := &usage.Report{From: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC), Total: usage.Amount{Requests: 1_234_567, Bytes: 5}, Days: make([]usage.Amount, 90)}
	r.Days[31].Requests, r.Days[89].Requests = 1_234_500, 67
	c := newUsageChart("", r)
	svg := string(c.SVG)
	for _, want := range []string{
		"1,234,567 in all, 67 today so far, at most 1,234,500, on 2026-02-01.", ">500k<", ">1.5M<", ">2026-01-01<", ">today<", `class="area"`,
	} {
		if !strings.Contains(svg, want) {
			t.Errorf("the chart lacks %q: %.600s", want, svg)
		}
	}
	for d := xml.NewDecoder(strings.NewReader(svg)); ; {
		if _, err := d.Token(); err == io.EOF {
			break
		} else if err != nil {
			t.Fatal(err)
		}
	}
}
