package simulate

import (
	"cmp"
	"errors"
	"fmt"
	"image/color"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"text/tabwriter"
	"time"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/palette/moreland"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
)

// Waits are the waits of those who came in, in ascending order.
func (r *Result) Waits() []time.Duration {
	var waits []time.Duration
	for _, v := range r.Visitors {
		if v.In {
			waits = append(waits, v.Wait())
		}
	}
	slices.Sort(waits)
	return waits
}

// quantile is of an ascending list; 0 where it is empty.
func quantile[T cmp.Ordered](sorted []T, p float64) (none T) {
	if len(sorted) == 0 {
		return none
	}
	return sorted[min(len(sorted)-1, int(p*float64(len(sorted))))]
}

// byArrival are the waits of those who arrived in each minute, ascending.
func (r *Result) byArrival() [][]time.Duration {
	waits := make([][]time.Duration, len(r.Minutes))
	for _, v := range r.Visitors {
		if v.In {
			m := int(v.Arrived / time.Minute)
			waits[m] = append(waits[m], v.Wait())
		}
	}
	for _, w := range waits {
		slices.Sort(w)
	}
	return waits
}

// Table prints the run minute by minute, and what came of it.
func (r *Result) Table(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "minute\tarrived\tadmitted\tactive at most\twaiting\tthose who arrived wait, p50\tp90\t")
	waits := r.byArrival()
	for i, m := range r.Minutes {
		p50, p90 := "", ""
		if len(waits[i]) > 0 {
			p50, p90 = seconds(quantile(waits[i], 0.5)), seconds(quantile(waits[i], 0.9))
		}
		fmt.Fprintf(t, "%d\t%d\t%d\t%d\t%d\t%s\t%s\t\n", i, m.Arrived, m.Admitted, m.Peak, m.Waiting, p50, p90)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	all := r.Waits()
	s := r.Settings
	_, err := fmt.Fprintf(w, `
%d of %d visitors came in; they waited %s (p50), %s (p90), %s at most
active users: %d at most, of %d allowed
admitted in a minute: %d at most, of %d allowed
requests that waited for the global object: %d
`, len(all), len(r.Visitors), seconds(quantile(all, 0.5)), seconds(quantile(all, 0.9)), seconds(quantile(all, 1)),
		r.PeakActive, s.TotalActiveUsers, r.PeakAdmitted, s.NewUsersPerMinute, r.Draws)
	return err
}

func seconds(d time.Duration) string { return d.Round(time.Second).String() }

// Draw writes the heat map of the waits by the minute of arrival, and the chart of active
// and waiting users with their limit, into dir as name-waits and name-room, each as PNG
// and SVG. It returns the files.
func (r *Result) Draw(dir, name string) (files []string, err error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	waits, err := r.drawWaits()
	if err != nil {
		return nil, err
	}
	room, err := r.drawRoom()
	if err != nil {
		return nil, err
	}
	for _, p := range []struct {
		name string
		plot *plot.Plot
	}{{name + "-waits", waits}, {name + "-room", room}} {
		for _, ext := range []string{".png", ".svg"} {
			file := filepath.Join(dir, p.name+ext)
			if err := save(p.plot, file, ext[1:]); err != nil {
				return files, err
			}
			files = append(files, file)
		}
	}
	return files, nil
}

// save writes a picture with a margin around it.
func save(p *plot.Plot, file, format string) error {
	const width, height, margin = 20 * vg.Centimeter, 13 * vg.Centimeter, 12
	canvas, err := draw.NewFormattedCanvas(width, height, format)
	if err != nil {
		return err
	}
	c := draw.New(canvas)
	c.SetColor(color.White)
	c.Fill(c.Rectangle.Path())
	p.Draw(draw.Crop(c, margin, -margin, margin, -margin))
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	_, err = canvas.WriteTo(f)
	return errors.Join(err, f.Close())
}

// newPlot returns a plot without content.
func newPlot(title, x, y string) *plot.Plot {
	p := plot.New()
	p.Title.Text, p.X.Label.Text, p.Y.Label.Text = title, x, y
	p.Title.Padding = 8
	for _, style := range []*draw.TextStyle{
		&p.Title.TextStyle, &p.X.Label.TextStyle, &p.Y.Label.TextStyle, &p.X.Tick.Label, &p.Y.Tick.Label, &p.Legend.TextStyle,
	} {
		style.Font.Variant = "Sans"
	}
	return p
}

// A histogram counts visitors by the minute of their arrival and by their wait.
type histogram struct {
	counts [][]float64 // by arrival, then by wait
	wait   time.Duration
}

const waitBins = 30

func (r *Result) histogram() histogram {
	longest := time.Second
	last := 0
	for _, v := range r.Visitors {
		if v.In {
			longest = max(longest, v.Wait()+1)
			last = max(last, int(v.Arrived/time.Minute))
		}
	}
	h := histogram{make([][]float64, max(2, last+1)), (longest + waitBins - 1) / waitBins}
	for i := range h.counts {
		h.counts[i] = make([]float64, waitBins)
	}
	for _, v := range r.Visitors {
		if v.In {
			h.counts[int(v.Arrived/time.Minute)][int(v.Wait()/h.wait)]++
		}
	}
	return h
}

func (h histogram) Dims() (c, r int)   { return len(h.counts), waitBins }
func (h histogram) Z(c, r int) float64 { return h.counts[c][r] }
func (h histogram) X(c int) float64    { return float64(c) + 0.5 }
func (h histogram) Y(r int) float64    { return (float64(r) + 0.5) * h.wait.Minutes() }

func (r *Result) drawWaits() (*plot.Plot, error) {
	h := r.histogram()
	most := 1.0
	for _, c := range h.counts {
		most = math.Max(most, slices.Max(c))
	}
	title := fmt.Sprintf("Wait by minute of arrival, %s, %s: from black, nobody, to white, %.0f users", r.Settings.Method, r.Settings.Allocator, most)
	p := newPlot(title, "minute of arrival", "wait in minutes")
	colours := moreland.ExtendedBlackBody()
	colours.SetMin(0)
	colours.SetMax(most)
	heat := plotter.NewHeatMap(h, colours.Palette(255))
	heat.Min, heat.Max = 0, most
	p.Add(heat)
	return p, nil
}

func (r *Result) drawRoom() (*plot.Plot, error) {
	p := newPlot(fmt.Sprintf("Active and waiting users, %s, %s", r.Settings.Method, r.Settings.Allocator), "minute", "users")
	p.Y.Min = 0
	p.Legend.Top, p.Legend.Padding = true, 4
	active := make(plotter.XYs, len(r.Seconds))
	waiting := make(plotter.XYs, len(r.Seconds))
	for i, s := range r.Seconds {
		x := float64(i) / 60
		active[i] = plotter.XY{X: x, Y: float64(s.Active)}
		waiting[i] = plotter.XY{X: x, Y: float64(s.Waiting)}
	}
	limit := plotter.XYs{{X: 0, Y: float64(r.Settings.TotalActiveUsers)}, {X: float64(max(1, len(r.Seconds))) / 60, Y: float64(r.Settings.TotalActiveUsers)}}
	for _, l := range []struct {
		name   string
		points plotter.XYs
		colour color.Color
		dashed bool
	}{
		{"waiting", waiting, color.RGBA{0x1f, 0x5f, 0xbf, 0xff}, false},
		{"active", active, color.RGBA{0x1b, 0x7f, 0x3b, 0xff}, false},
		{"limit", limit, color.RGBA{0xe0, 0x6c, 0x00, 0xff}, true}, // over the others
	} {
		line, err := plotter.NewLine(l.points)
		if err != nil {
			return nil, err
		}
		line.Color = l.colour
		line.Width = vg.Points(1.5)
		if l.dashed {
			line.Dashes = []vg.Length{vg.Points(6), vg.Points(4)}
		}
		p.Add(line)
		p.Legend.Add(l.name, line)
	}
	return p, nil
}

// Utilisation is the mean part of the limit that was active in the seconds in which at
// least as many waited as there were slots, from when the room was full first; 0 where
// there were none.
func (r *Result) Utilisation() float64 {
	used, seconds := 0.0, 0
	limit := r.Settings.TotalActiveUsers
	full := false
	for _, s := range r.Seconds {
		full = full || s.Active >= limit*9/10
		if full && s.Waiting > max(0, limit-s.Active) {
			used += float64(s.Active) / float64(limit)
			seconds++
		}
	}
	if seconds == 0 {
		return 0
	}
	return used / float64(seconds)
}

var _ plotter.GridXYZ = histogram{}
