package config

import "testing"

func BenchmarkCovers(b *testing.B) {
	for name, rooms := range map[string][]Room{
		"no room":     nil,
		"one room":    {{Routes: []Route{{"", "/download/"}}}},
		"three rooms": {{Routes: []Route{{"", "/download/"}}}, {Routes: []Route{{"", "/api/"}}}, {Routes: []Route{{"shop.example.com", "/"}}}},
	} {
		b.Run(name, func(b *testing.B) {
			table := NewTable(rooms)
			b.ReportAllocs()
			for b.Loop() {
				if table.Covers("cdn.example.com", "/ajax/libs/jquery/3.7.1/jquery.min.js") {
					b.Fatal("it is covered")
				}
			}
		})
	}
}
