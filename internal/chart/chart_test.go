package chart

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"math"
	"strings"
	"testing"
)

func TestStep(t *testing.T) {
	for _, highest := range []float64{0, 0.4, 1, 3, 4, 5, 7, 10, 11, 49, 99, 100, 101, 999, 12_345, 1e9} {
		step := Step(highest, 1)
		if n := math.Ceil(highest / step); step < 1 || n > 6 || highest > 4 && n < 2 {
			t.Errorf("%v: %v marks %v apart", highest, n, step)
		}
		if step := Step(highest, 0); highest > 0 && (highest/step > 6 || highest/step < 2) {
			t.Errorf("%v, in parts: marks %v apart", highest, step)
		}
	}
}

// parse reads a picture as XML, and returns its texts and how many of each class it has.
func parse(t *testing.T, svg []byte) (texts string, classes map[string]int) {
	t.Helper()
	classes = map[string]int{}
	d := xml.NewDecoder(bytes.NewReader(svg))
	for {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatalf("%v in:\n%s", err, svg)
		}
		switch e := token.(type) {
		case xml.StartElement:
			for _, a := range e.Attr {
				if a.Name.Local == "class" {
					for class := range strings.FieldsSeq(a.Value) {
						classes[class]++
					}
				}
				if a.Name.Local == "style" || strings.HasPrefix(a.Name.Local, "on") || strings.Contains(a.Value, "NaN") || strings.Contains(a.Value, "Inf") {
					t.Errorf("<%s %s=%q>", e.Name.Local, a.Name.Local, a.Value)
				}
			}
		case xml.CharData:
			texts += string(e) + "\n"
		}
	}
	return texts, classes
}

func TestLines(t *testing.T) {
	many := make([]float64, 10_000)
	many[7777] = 90 // a peak that must not get lost
	c := Chart{
		Title: "Users <of> \"a\" & b", Summary: "Ups & downs", X: Axis{Title: "minute", Max: 100, Step: 20}, Y: Axis{Title: "users", Max: 100, Step: 50},
		Lines: []Line{{Name: "a", Step: 0.01, Values: many, Filled: true}, {Name: "b & c", Step: 50, Values: []float64{0, 50, 100}}, {Name: "none"}},
		Limit: 75, LimitText: "limit 75",
	}
	texts, classes := parse(t, c.File())
	for _, want := range []string{c.Title, c.Summary, "minute", "users", "\n80\n", "\n50\n", "b & c", "limit 75"} {
		if !strings.Contains(texts, want) {
			t.Errorf("lacks %q", want)
		}
	}
	if classes["curve-0"] != 2 || classes["curve-1"] != 2 || classes["area"] != 1 || classes["limit"] != 2 || classes["rule"] != 3 {
		t.Errorf("%v", classes)
	}
	inline := c.Inline()
	if _, classes = parse(t, []byte(inline)); classes["curve-0"] != 1 || classes["ground"] != 0 || classes["limit-text"] != 1 || strings.Contains(inline, "<style") {
		t.Errorf("inline: %v", classes)
	}
	if peak := (&plot{Chart: &c, left: 46, right: 512, top: 20, bottom: 176}).y(90); !strings.Contains(inline, " "+peak+"L") || len(inline) > 40_000 {
		t.Errorf("of many values the peak is lost, or all are drawn: %d bytes", len(inline))
	}
}

func TestHeat(t *testing.T) {
	c := Chart{Title: "Waits", X: Axis{Max: 3, Step: 1}, Y: Axis{Max: 0.5, Step: 0.1}, Heat: &Heat{Unit: "users", Columns: [][]float64{{0, 1}, {5, 50}, {49, 0}}}}
	texts, classes := parse(t, c.File())
	if classes["heat-1"] != 2 || classes["heat-10"] != 2 || classes["heat-5"] != 1 || classes["heat-0"] != 0 {
		t.Errorf("cells and scale: %v", classes)
	}
	for _, want := range []string{"users", "\n0.1\n", "\n0.5\n", "\n40\n"} {
		if !strings.Contains(texts, want) {
			t.Errorf("lacks %q in %q", want, texts)
		}
	}
	c.Heat.Columns = [][]float64{{0, 0}}
	if _, classes := parse(t, c.File()); classes["heat"] != 0 {
		t.Errorf("of nothing: %v", classes)
	}
}
