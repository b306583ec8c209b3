// Package chart draws charts as SVG: lines over time, and heat maps.
//
// A chart needs no script. Inline it has only class names, which the page's style sheet
// gives colours (rule, tick, limit, limit-text, area, curve); as a file it has a style of
// its own, for light and for dark. Every chart says in words what it shows. The package
// must not know what the values are about.
package chart

import (
	_ "embed"
	"fmt"
	"html"
	"math"
	"slices"
	"strconv"
	"strings"
)

// A Chart has values over two axes that begin at 0.
type Chart struct {
	Title   string // of a file; a page has its own
	Summary string // the chart in words, for readers who cannot see it
	X, Y    Axis
	Lines   []Line
	Heat    *Heat
	// Limit is a value of the vertical axis that is marked with LimitText. 0 is none.
	Limit     float64
	LimitText string
}

// An Axis is one of the two.
type Axis struct {
	Title string // of a file
	Max   float64
	// Marks label the axis. Default: a mark at each Step, with the text of Format.
	Marks  []Mark
	Step   float64                // see [Step]
	Format func(v float64) string // default: a decimal number
}

// A Mark is the label of a value.
type Mark struct {
	At   float64
	Text string
}

// A Line is a value at 0, Step, 2·Step and so on.
type Line struct {
	Name   string
	Step   float64
	Values []float64
	Filled bool // down to 0
}

// Heat is how many of something are in each cell of an even grid over both axes.
type Heat struct {
	Columns [][]float64 // from the left, each from below
	Unit    string      // what is counted
}

// Step returns a distance between marks in which people count: 1, 2 or 5 times a power of ten, which fits into highest five times at
// most; or least if that is more.
func Step(highest, least float64) float64 {
	step := math.Pow(10, math.Floor(math.Log10(max(highest, 1e-9)/3)))
	for _, m := range [...]float64{2, 2.5, 2} {
		if highest/step <= 5 {
			break
		}
		step *= m
	}
	return max(step, least)
}

// NewSpanAxis returns the axis of lines with a value at 0, 1, 2 and so on, of which there are at least one. It has marks only at the
// first value and at the last one.
func NewSpanAxis(values int, first, last string) Axis {
	end := float64(max(1, values-1))
	return Axis{Max: end, Marks: []Mark{{0, first}, {end, last}}}
}

// NewValueAxis returns an axis of values from 0, with a mark at each step; the last mark is the first step at or above highest.
// format returns the texts of the marks; nil stands for decimal numbers.
func NewValueAxis(highest float64, format func(float64) string) Axis {
	step := Step(highest, 1)
	return Axis{Max: math.Ceil(max(highest, step)/step) * step, Step: step, Format: format}
}

// A plot is a chart with the edges of its plotting area.
type plot struct {
	*Chart
	left, right, top, bottom float64
}

// x returns the horizontal coordinate of a value, for SVG.
func (f *plot) x(v float64) string { return decimal(f.left + (f.right-f.left)*v/f.X.Max) }

// y returns the vertical coordinate of a value, for SVG.
func (f *plot) y(v float64) string { return decimal(f.bottom - (f.bottom-f.top)*v/f.Y.Max) }

// decimal returns a coordinate as text, rounded to one decimal.
func decimal(v float64) string { return strconv.FormatFloat(math.Round(v*10)/10, 'f', -1, 64) }

// Inline returns the chart as an SVG element for an HTML page whose style sheet has the classes.
func (c *Chart) Inline() string {
	const width, height = 520, 200
	left := 46.0
	for _, m := range c.Y.marks() {
		left = max(left, 12+7*float64(len(m.Text))) // as wide as the digits of the style sheet's tick
	}
	f := plot{Chart: c, left: left, right: width - 8, top: 20, bottom: height - 24}
	var b strings.Builder
	fmt.Fprintf(&b, `<svg viewBox="0 0 %d %d" role="img" aria-label="%s">`+"\n", width, height, html.EscapeString(c.Summary))
	f.draw(&b)
	if c.Limit != 0 {
		fmt.Fprintf(&b, `<text class="limit-text" x="%s" y="%s" dx="-4" dy="-5" text-anchor="end">%s</text>`+"\n", decimal(f.right), f.y(c.Limit), html.EscapeString(c.LimitText))
	}
	b.WriteString("</svg>")
	return b.String()
}

// draw writes what is inside the axes, and their marks.
func (f *plot) draw(b *strings.Builder) {
	left, right := decimal(f.left), decimal(f.right)
	for _, m := range f.Y.marks() {
		fmt.Fprintf(b, `<path class="rule" d="M%s %sH%s"/><text class="tick" x="%[1]s" y="%[2]s" dx="-8" dy="4" text-anchor="end">%[4]s</text>`+"\n", left, f.y(m.At), right, html.EscapeString(m.Text))
	}
	if f.Heat != nil {
		f.drawHeat(b)
	}
	for i, l := range f.Lines {
		f.drawLine(b, i, l)
	}
	if f.Limit != 0 { // over the lines
		fmt.Fprintf(b, `<path class="limit" d="M%s %sH%s"/>`+"\n", left, f.y(f.Limit), right)
	}
	for _, m := range f.X.marks() {
		anchor := "middle"
		switch {
		case f.X.Marks != nil && m.At == 0:
			anchor = "start"
		case f.X.Marks != nil && m.At == f.X.Max:
			anchor = "end"
		}
		fmt.Fprintf(b, `<text class="tick" x="%s" y="%s" dy="18" text-anchor="%s">%s</text>`+"\n", f.x(m.At), decimal(f.bottom), anchor, html.EscapeString(m.Text))
	}
}

// marks returns the marks of the axis, or if these are nil, one at each step.
func (a *Axis) marks() []Mark {
	marks := a.Marks
	format := a.Format
	if format == nil {
		format = func(v float64) string { return strconv.FormatFloat(v, 'g', 12, 64) }
	}
	for i := 0; a.Marks == nil && a.Step > 0 && float64(i)*a.Step <= a.Max*1.0001; i++ {
		v := float64(i) * a.Step
		marks = append(marks, Mark{v, format(v)})
	}
	return marks
}

// mostPoints bounds the points of a line; of several values at one point the highest is drawn.
const mostPoints = 1500

// drawLine draws line number i of the chart, and fills the area below it if the line says so. If it has too many values for its
// points, each point is the highest of several.
func (f *plot) drawLine(b *strings.Builder, i int, l Line) {
	stride := (len(l.Values) + mostPoints - 1) / mostPoints
	var path strings.Builder
	at := 0.0
	for k := 0; k < len(l.Values); k += stride {
		command := "L"
		if k == 0 {
			command = "M"
		}
		at = float64(k) * l.Step
		path.WriteString(command + f.x(at) + " " + f.y(slices.Max(l.Values[k:min(k+stride, len(l.Values))])))
	}
	if l.Filled {
		bottom := decimal(f.bottom)
		fmt.Fprintf(b, `<path class="area" d="%sL%s %sL%s %[3]sZ"/>`, path.String(), f.x(at), bottom, decimal(f.left))
	}
	fmt.Fprintf(b, `<path class="curve curve-%d" d="%s"/>`+"\n", i, path.String())
}

//go:embed file.css
var style string

const (
	fileWidth, fileHeight = 820, 520
	keyTop                = 62 // of the keys of the lines
)

// File returns the chart as an SVG file.
func (c *Chart) File() []byte {
	f := plot{Chart: c, left: 84, right: fileWidth - 36, top: 84, bottom: fileHeight - 72}
	if c.Heat != nil {
		f.right -= 84 // the scale
		f.top -= 26   // without keys of lines
	}
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%[1]d" height="%[2]d" role="img" aria-labelledby="title summary">`+"\n", fileWidth, fileHeight)
	fmt.Fprintf(&b, "<title id=\"title\">%s</title>\n<desc id=\"summary\">%s</desc>\n<style>\n%s</style>\n", html.EscapeString(c.Title), html.EscapeString(c.Summary), style)
	fmt.Fprintf(&b, `<rect class="ground" width="%d" height="%d"/><text class="title" x="%s" y="36">%s</text>`+"\n", fileWidth, fileHeight, decimal(f.left), html.EscapeString(c.Title))
	middle := (f.top + f.bottom) / 2
	fmt.Fprintf(&b, `<text class="axis" x="%s" y="%s" text-anchor="middle">%s</text>`, decimal((f.left+f.right)/2), decimal(f.bottom+48), html.EscapeString(c.X.Title))
	fmt.Fprintf(&b, `<text class="axis" transform="translate(26 %s) rotate(-90)" text-anchor="middle">%s</text>`+"\n", decimal(middle), html.EscapeString(c.Y.Title))
	x := f.left
	key := func(class, text string) {
		fmt.Fprintf(&b, `<path class="%s" d="M%s %dh26"/><text class="axis" x="%s" y="%[3]d" dy="5">%[5]s</text>`+"\n", class, decimal(x), keyTop, decimal(x+34), html.EscapeString(text))
		x += 60 + 9*float64(len(text))
	}
	for i, l := range c.Lines {
		key(fmt.Sprintf("curve curve-%d", i), l.Name)
	}
	if c.Limit != 0 {
		key("limit", c.LimitText)
	}
	f.draw(&b)
	fmt.Fprintf(&b, `<path class="frame" d="M%s %sV%sH%s"/>`+"\n", decimal(f.left), decimal(f.top), decimal(f.bottom), decimal(f.right))
	b.WriteString("</svg>\n")
	return []byte(b.String())
}

// heatLevels is how many colours there are besides that of an empty cell.
const heatLevels = 10

// drawHeat fills the cells, a path for each colour, and draws the scale beside them.
func (f *plot) drawHeat(b *strings.Builder) {
	most := 0.0
	for _, column := range f.Heat.Columns {
		for _, v := range column {
			most = max(most, v)
		}
	}
	var levels [heatLevels + 1]strings.Builder
	for i, column := range f.Heat.Columns {
		for k, v := range column {
			if v > 0 {
				levels[int(math.Ceil(v/most*heatLevels))].WriteString(f.cellPath(i, k, len(column)))
			}
		}
	}
	for level := range levels {
		if path := levels[level].String(); path != "" {
			fmt.Fprintf(b, `<path class="heat heat-%d" d="%s"/>`+"\n", level, path)
		}
	}
	if most > 0 {
		f.drawScale(b, most)
	}
}

// cellPath returns the SVG path of a cell. Its edges are those of its neighbours, so that there is no gap between them.
func (f *plot) cellPath(column, row, rows int) string {
	x := func(i int) string { return f.x(f.X.Max * float64(i) / float64(len(f.Heat.Columns))) }
	y := func(i int) string { return f.y(f.Y.Max * float64(i) / float64(rows)) }
	return fmt.Sprintf("M%s %sH%sV%sH%[1]sZ", x(column), y(row), x(column+1), y(row+1))
}

// drawScale draws the scale of a heat map to the right of the plot: its colours from 0 to most, with marks, and the unit above.
func (f *plot) drawScale(b *strings.Builder, most float64) {
	const width = 18
	left := f.right + 26
	scale := plot{Chart: &Chart{X: Axis{Max: 1}, Y: Axis{Max: most}}, left: left, right: left + width, top: f.top + 22, bottom: f.bottom}
	fmt.Fprintf(b, `<text class="tick" x="%s" y="%s" dy="10">%s</text>`+"\n", decimal(left), decimal(f.top), html.EscapeString(f.Heat.Unit))
	for level := 1; level <= heatLevels; level++ {
		fmt.Fprintf(b, `<path class="heat heat-%d" d="M%s %sh%dV%sh-%[4]dZ"/>`, level, decimal(left), scale.y(most*float64(level-1)/heatLevels), width, scale.y(most*float64(level)/heatLevels))
	}
	marks := Axis{Max: most, Step: Step(most, 1)}
	for _, m := range marks.marks() {
		fmt.Fprintf(b, `<path class="frame" d="M%s %sh5"/><text class="tick" x="%[1]s" y="%[2]s" dx="9" dy="4">%[3]s</text>`+"\n", decimal(scale.right), scale.y(m.At), html.EscapeString(m.Text))
	}
}
