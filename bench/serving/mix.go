package main

import (
	"errors"
	"math"
	"math/rand/v2"
	"net/http"
	"slices"
)

const (
	mixSeed     = 5
	mixRequests = 200_000
	zipfS       = 1.1 // a share of the k-th most popular file that falls with k to this power

	conditionalShare = 0.08
	missingShare     = 0.01
	headShare        = 0.01

	// meanBody is what cdnjs sends for a request: 3.46 PB in 190 billion of them in
	// one July.
	meanBody = 3.46e15 / 190e9
)

// A mix is a list of requests as sites make them, the same in every run.
type mix struct {
	Files    int     `json:"files"`         // that it draws from
	Bytes    int64   `json:"bytes"`         // of those files' bodies
	Requests int     `json:"requests"`      // in the list
	Distinct int     `json:"distinctFiles"` // that the list asks for
	Working  int64   `json:"distinctBytes"`
	Mean     float64 `json:"meanBody"` // in bytes, of the answers that have one
	requests []request
	order    []int32 // indexes into requests
}

// newMix draws the list. Which file is the most popular is drawn, too, with large
// files the likelier (or the less likely) the further the mean of all bodies is
// from meanBody: a file's place is by exponent×ln(length) plus Gumbel noise, which
// draws without putting back in proportion to length^exponent.
func newMix(files []file, n int) (*mix, error) {
	if len(files) == 0 {
		return nil, errors.New("the corpus has no files")
	}
	rng := rand.New(rand.NewPCG(mixSeed, 0))
	files = slices.Clone(files)
	rng.Shuffle(len(files), func(i, j int) { files[i], files[j] = files[j], files[i] })
	files = files[:min(n, len(files))]
	ranked := rank(files, rng)

	m := &mix{Files: len(ranked), Requests: mixRequests}
	for _, f := range ranked {
		m.Bytes += int64(f.Length)
	}
	zipf := rand.NewZipf(rng, zipfS, 1, uint64(len(ranked)-1))
	index := map[request]int32{}
	asked := map[string]bool{}
	bodies := 0
	for range mixRequests {
		f := ranked[zipf.Uint64()]
		q := request{Method: http.MethodGet, Path: f.Path}
		switch kind := rng.Float64(); {
		case kind < conditionalShare:
			q.Conditional = true
		case kind < conditionalShare+headShare:
			q.Method = http.MethodHead
		case kind < conditionalShare+headShare+missingShare:
			q.Path = missingPath(rng.IntN(1000))
		default:
			m.Mean += float64(f.Length)
			bodies++
		}
		if q.Path == f.Path && !asked[f.Path] {
			asked[f.Path] = true
			m.Distinct++
			m.Working += int64(f.Length)
		}
		i, ok := index[q]
		if !ok {
			i = int32(len(m.requests))
			index[q] = i
			m.requests = append(m.requests, q)
		}
		m.order = append(m.order, i)
	}
	m.Mean /= float64(max(1, bodies))
	return m, nil
}

// rank orders files by popularity, so that the mean body comes near meanBody.
func rank(files []file, rng *rand.Rand) []file {
	noise := make(map[string]float64, len(files))
	for _, f := range files {
		noise[f.Path] = -math.Log(-math.Log(1 - rng.Float64()))
	}
	ranked := slices.Clone(files)
	low, high := -4.0, 4.0
	for range 30 {
		exponent := (low + high) / 2
		place := func(f file) float64 { return exponent*math.Log(float64(f.Length+1)) + noise[f.Path] }
		slices.SortFunc(ranked, func(a, b file) int {
			switch x, y := place(a), place(b); {
			case x > y:
				return -1
			case x < y:
				return 1
			}
			return 0
		})
		if expectedBody(ranked) < meanBody {
			low = exponent
		} else {
			high = exponent
		}
	}
	return ranked
}

// expectedBody is the mean body of files that are asked for by Zipf's law.
func expectedBody(ranked []file) float64 {
	sum, weights := 0.0, 0.0
	for k, f := range ranked {
		w := math.Pow(float64(1+k), -zipfS)
		sum += w * float64(f.Length)
		weights += w
	}
	return sum / weights
}
