package main

import (
	"fmt"
	"image/color"
	"os"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
)

// shades are of Larder with the lane, without it, and Caddy: told apart in grey, too.
var shades = []color.Color{color.NRGBA{0x1b, 0x5e, 0x9b, 0xff}, color.NRGBA{0x7f, 0xb3, 0xd5, 0xff}, color.NRGBA{0xd9, 0x8b, 0x2b, 0xff}}

// draw writes name.png and name.svg: a panel for each protocol, with requests a
// second over those of the best nginx, by size.
func (r *report) draw(name string) error {
	var panels []*plot.Plot
	for _, p := range protocols {
		var of []result
		for _, s := range r.Scenarios {
			if s.Protocol == p.name && s.Body > 0 {
				of = append(of, s)
			}
		}
		if len(of) == 0 {
			continue
		}
		panel, err := newPanel(p.name, of)
		if err != nil {
			return err
		}
		panels = append(panels, panel)
	}
	if len(panels) == 0 {
		return nil
	}
	name = strings.TrimSuffix(strings.TrimSuffix(name, ".png"), ".svg")
	for _, format := range []string{"png", "svg"} {
		if err := drawPanels(panels, name+"."+format, format); err != nil {
			return fmt.Errorf("couldn't draw %s.%s: %w", name, format, err)
		}
	}
	return nil
}

func newPanel(title string, results []result) (*plot.Plot, error) {
	p := plot.New()
	p.Title.Text = title
	p.Y.Label.Text = "requests/s, nginx = 1"
	p.Y.Min = 0
	p.Legend.Top = true
	const width = 10 // points
	series := []string{"Larder", "lane off", "Caddy"}
	var names []string
	values := make([]plotter.Values, len(series))
	highest := 1.0
	for _, s := range results {
		names = append(names, strings.TrimPrefix(s.Name, s.Protocol+" "))
		larder := s.Ratios[0].Rate
		values[0] = append(values[0], larder)
		for i := 1; i < len(series); i++ {
			values[i] = append(values[i], over(larder, s.Ratios[i].Rate))
		}
		for _, v := range values {
			highest = max(highest, v[len(v)-1])
		}
	}
	for i, v := range values {
		bars, err := plotter.NewBarChart(v, vg.Points(width))
		if err != nil {
			return nil, err
		}
		bars.Color, bars.LineStyle.Width = shades[i], 0
		bars.Offset = vg.Points(float64(i-1) * width)
		p.Add(bars)
		p.Legend.Add(series[i], bars)
	}
	even, err := plotter.NewLine(plotter.XYs{{X: -0.5, Y: 1}, {X: float64(len(names)) - 0.5, Y: 1}})
	if err != nil {
		return nil, err
	}
	p.Add(even)
	p.Y.Max = highest * 1.35 // room for the legend
	p.NominalX(names...)
	return p, nil
}

func drawPanels(panels []*plot.Plot, file, format string) error {
	columns := min(2, len(panels))
	rows := (len(panels) + 1) / 2
	canvas, err := draw.NewFormattedCanvas(vg.Length(columns)*12*vg.Centimeter, vg.Length(rows)*8*vg.Centimeter, format)
	if err != nil {
		return err
	}
	table := make([][]*plot.Plot, rows)
	for i := range table {
		table[i] = make([]*plot.Plot, columns)
		for j := range table[i] {
			if at := i*columns + j; at < len(panels) {
				table[i][j] = panels[at]
			}
		}
	}
	tiles := draw.Tiles{Rows: rows, Cols: columns, PadX: vg.Millimeter * 4, PadY: vg.Millimeter * 4, PadTop: vg.Millimeter * 2, PadBottom: vg.Millimeter * 2, PadLeft: vg.Millimeter * 2, PadRight: vg.Millimeter * 4}
	surface := draw.New(canvas)
	for i, line := range plot.Align(table, tiles, surface) {
		for j, place := range line {
			if table[i][j] != nil {
				table[i][j].Draw(place)
			}
		}
	}
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	if _, err := canvas.WriteTo(f); err != nil {
		f.Close()
		return err
	}
	return f.Close()
}
