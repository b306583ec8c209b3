package durable

import (
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/larder-cdn/larder/kvstore"
)

// counts are what has happened to the objects of a class.
type counts struct {
	events, overloads, resets, alarms, failures atomic.Int64
}

// Collector returns the metrics of all classes for Prometheus. It reads the store, and
// must not be asked any more once that is closed.
func (r *Runtime) Collector() prometheus.Collector { return collector{r} }

type collector struct{ runtime *Runtime }

var (
	eventsDesc    = describe("events_total", "Events that were delivered to durable objects, alarms aside.")
	overloadsDesc = describe("overloads_total", "Events that were refused because an object had as many as it may have.")
	resetsDesc    = describe("resets_total", "How often an object was stopped to start again from its storage: a write failed, or its code panicked.")
	alarmsDesc    = describe("alarms_total", "Alarms that were fired.")
	failuresDesc  = describe("alarm_failures_total", "Alarms that failed, and are fired again.")
	liveDesc      = describe("live", "Durable objects in memory.")
	lateDesc      = describe("alarm_late_seconds", "For how long the oldest alarm that nobody handles has been due; 0 where none is.")
)

func describe(name, help string) *prometheus.Desc {
	return prometheus.NewDesc("larder_objects_"+name, help, []string{"class"}, nil)
}

// Describe implements prometheus.Collector.
func (collector) Describe(to chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{eventsDesc, overloadsDesc, resetsDesc, alarmsDesc, failuresDesc, liveDesc, lateDesc} {
		to <- d
	}
}

// Collect implements prometheus.Collector.
func (c collector) Collect(to chan<- prometheus.Metric) {
	c.runtime.mu.Lock()
	classes := slices.Collect(maps.Values(c.runtime.classes))
	c.runtime.mu.Unlock()
	for _, class := range classes {
		send := func(d *prometheus.Desc, kind prometheus.ValueType, value float64) {
			to <- prometheus.MustNewConstMetric(d, kind, value, class.name)
		}
		for d, n := range map[*prometheus.Desc]*atomic.Int64{
			eventsDesc: &class.counts.events, overloadsDesc: &class.counts.overloads, resetsDesc: &class.counts.resets,
			alarmsDesc: &class.counts.alarms, failuresDesc: &class.counts.failures,
		} {
			send(d, prometheus.CounterValue, float64(n.Load()))
		}
		class.mu.Lock()
		live := len(class.objects)
		class.mu.Unlock()
		send(liveDesc, prometheus.GaugeValue, float64(live))
		if late, err := class.late(); err != nil {
			to <- prometheus.NewInvalidMetric(lateDesc, err)
		} else {
			send(lateDesc, prometheus.GaugeValue, late.Seconds())
		}
	}
}

// late returns for how long the oldest alarm has been due that is neither being handled
// nor held back.
func (c *class) late() (time.Duration, error) {
	a := &c.alarms
	a.mu.Lock()
	low := slices.Clone(a.low)
	a.mu.Unlock()
	now := c.runtime.now().UnixNano()
	prefix := duePrefix(c.name)
	for item, err := range c.runtime.store.Scan(kvstore.Durable, kvstore.Range{Prefix: prefix, From: append(duePrefix(c.name), low...)}) {
		if err != nil {
			return 0, err
		}
		name, at, err := parseDue(item.Key[len(prefix):])
		if err != nil {
			continue // whoever fires alarms says so
		}
		if at >= now {
			break
		}
		a.mu.Lock()
		_, running := a.running[name]
		_, held := a.held[name]
		a.mu.Unlock()
		if !running && !held {
			return time.Duration(now - at), nil
		}
	}
	return 0, nil
}
