package api

import (
	"encoding/xml"
	"errors"
	"io"
	"strings"
	"testing"
)

func TestBadge(t *testing.T) {
	s := newService(t, func(o *PublicOptions) { o.Name = `Larder "<&>"` })
	for _, tt := range []struct {
		target string
		status int
		text   string
	}{
		{"/badge/jquery.svg", 200, ">3.7.1<"},
		{"/badge/jquery.svg/", 200, ">3.7.1<"},
		{"/badge/font-awesome.svg", 200, ">6.0.0<"},
		{"/badge/bare.svg", 200, ">not published<"},
		{"/badge/nothing.svg", 404, "Library not found"},
		{"/badge/jquery", 404, "Endpoint not found"},
	} {
		got := s.get(tt.target)
		if got.status != tt.status || !strings.Contains(got.body, tt.text) {
			t.Errorf("%s: %d %s", tt.target, got.status, got.body)
		}
		if tt.status != 200 {
			continue
		}
		equal(t, tt.target+" Content-Type", got.get("Content-Type"), "image/svg+xml")
		equal(t, tt.target+" Cache-Control", got.get("Cache-Control"), five)
		for d := xml.NewDecoder(strings.NewReader(got.body)); ; {
			if _, err := d.Token(); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				t.Fatalf("%s: %v in %s", tt.target, err, got.body)
			}
		}
	}
}
