package site

import (
	"math"
	"strconv"
	"strings"
)

// A chart is a picture of values over time, as SVG that needs no script and no style of
// its own. Its text says the same.
type chart struct {
	ID, Title, Unit string
	Lines           []curve
	Marks           []mark // of the vertical axis, from below
	LimitY          string // "" where there is no limit to show
	Limit           string
	Summary         string
	Width, Height   int
	Left, Right     int // edges of the plot
	Top, Bottom     int
}

// A line is what is drawn: one value for each point in time.
type line struct {
	name   string
	values []float64
}

// A curve is a line as SVG draws it.
type curve struct {
	Name, Path, Area string
	Last             string
}

// A mark is a value of the vertical axis.
type mark struct {
	Y, Text string
}

const (
	chartWidth, chartHeight = 520, 200
	chartLeft, chartRight   = 46, 512
	chartTop, chartBottom   = 20, 176
)

// newChart draws lines, and a limit where it is not 0 and near enough to be seen beside
// what is drawn.
func newChart(id, title, unit string, limit float64, lines ...line) chart {
	c := chart{ID: id, Title: title, Unit: unit, Width: chartWidth, Height: chartHeight, Left: chartLeft, Right: chartRight, Top: chartTop, Bottom: chartBottom}
	highest := 0.0
	for _, l := range lines {
		for _, v := range l.values {
			highest = max(highest, v)
		}
	}
	shown := limit > 0 && limit <= 4*max(highest, 1)
	if shown {
		highest = max(highest, limit)
	}
	step := niceStep(highest)
	top := math.Ceil(max(highest, step)/step) * step
	y := func(v float64) string {
		return decimal(chartBottom - (chartBottom-chartTop)*v/top)
	}
	for v := 0.0; v <= top+step/2; v += step {
		c.Marks = append(c.Marks, mark{y(v), strconv.FormatFloat(v, 'f', -1, 64)})
	}
	if shown {
		c.LimitY, c.Limit = y(limit), formatNumber(int(limit))
	}
	var said []string
	for _, l := range lines {
		c.Lines = append(c.Lines, drawCurve(l, y))
		most := 0.0
		for _, v := range l.values {
			most = max(most, v)
		}
		said = append(said, l.name+": "+short1(l.values[len(l.values)-1])+" now, at most "+short1(most))
	}
	c.Summary = title + ", in " + unit + ", over the last " + strconv.Itoa(len(lines[0].values)) + " minutes. " + strings.Join(said, "; ") + "."
	return c
}

func drawCurve(l line, y func(float64) string) curve {
	var path strings.Builder
	for i, v := range l.values {
		x := decimal(chartLeft + float64(chartRight-chartLeft)*float64(i)/float64(max(1, len(l.values)-1)))
		if i == 0 {
			path.WriteString("M")
		} else {
			path.WriteString("L")
		}
		path.WriteString(x + " " + y(v))
	}
	bottom := strconv.Itoa(chartBottom)
	return curve{
		Name: l.name, Path: path.String(), Last: short1(l.values[len(l.values)-1]),
		Area: path.String() + "L" + strconv.Itoa(chartRight) + " " + bottom + "L" + strconv.Itoa(chartLeft) + " " + bottom + "Z",
	}
}

// niceStep is a distance between marks that people count in: 1, 2 or 5 times a power of
// ten, three to six times in highest.
func niceStep(highest float64) float64 {
	if highest <= 4 {
		return 1
	}
	power := math.Pow(10, math.Floor(math.Log10(highest/3)))
	for _, m := range [...]float64{1, 2, 5, 10} {
		if highest/(m*power) <= 5 {
			return m * power
		}
	}
	return 10 * power
}

// decimal writes a coordinate.
func decimal(v float64) string { return strconv.FormatFloat(math.Round(v*10)/10, 'f', -1, 64) }

// short1 writes a value for people: whole, or with one digit behind the point.
func short1(v float64) string {
	if v == math.Trunc(v) {
		return formatNumber(int(v))
	}
	return strconv.FormatFloat(v, 'f', 1, 64)
}
