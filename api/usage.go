package api

import (
	"context"
	"math"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/larder-cdn/larder/api/library"
	"github.com/larder-cdn/larder/internal/answers"
	"github.com/larder-cdn/larder/server/usage"
)

const (
	// usageDays is how many days a response covers by default.
	usageDays = 30
	// usageFiles is how many files a response lists at most.
	usageFiles = 100
)

var badDays = newFailure(http.StatusBadRequest, "days must be a whole number from 1 to "+strconv.Itoa(usage.MostDays))

// A usageAnswer is the response of packageUsage. From and To are the first and the last day (YYYY-MM-DD, UTC), and Days has
// each day between, the oldest first.
type usageAnswer struct {
	From     string         `json:"from"`
	To       string         `json:"to"`
	Requests uint64         `json:"requests"`
	Bytes    uint64         `json:"bytes"`
	Days     []usageDay     `json:"days"`
	Versions []usageVersion `json:"versions"`
	Files    []usageFile    `json:"files"`
}

// A usageDay is how much was requested on one day.
type usageDay struct {
	Date     string `json:"date"`
	Requests uint64 `json:"requests"`
	Bytes    uint64 `json:"bytes"`
}

// A usageVersion is how much of a version was requested on all days of the response.
type usageVersion struct {
	Version  string `json:"version"`
	Requests uint64 `json:"requests"`
	Bytes    uint64 `json:"bytes"`
}

// A usageFile is a file that was requested lately, whatever the days of the response: Requests is an estimate, in which
// older requests count less, and AtLeast of them are certain.
type usageFile struct {
	Version  string `json:"version"`
	Path     string `json:"path"`
	Requests int64  `json:"requests"`
	AtLeast  int64  `json:"atLeast"`
}

// packageUsage returns the response to /packages/{package}/usage: how often the library's files, or those of the version in
// the query, were requested in the last days (30 or the number in the query), by day and by version, and up to 100 of its
// most requested files on this node, by counts in which older requests weigh less, whatever the days. Malformed days are a
// failure with status 400, an unknown version without requests one with 404.
func (p *public) packageUsage(_ context.Context, r *request, l *library.Library) (*answers.Body, answers.Caching, error) {
	days := usageDays
	if text := r.query.Get("days"); text != "" {
		var err error
		if days, err = strconv.Atoi(text); err != nil || days < 1 || days > usage.MostDays {
			return nil, answers.Caching{}, badDays
		}
	}
	a := usageAnswer{Days: []usageDay{}, Versions: []usageVersion{}, Files: []usageFile{}}
	version := r.query.Get("version")
	report, err := p.Usage.ReportOn(l.Name, version, days)
	if err != nil {
		return nil, answers.Caching{}, err
	}
	if version != "" && report.Total == (usage.Amount{}) { // a withdrawn version may have been requested
		names, err := p.versionNames(l)
		if err != nil {
			return nil, answers.Caching{}, err
		}
		if !slices.Contains(names, version) {
			return nil, answers.Caching{}, answers.NoVersion
		}
	}
	a.From, a.To = report.From.Format(time.DateOnly), report.To.Format(time.DateOnly)
	a.Requests, a.Bytes = report.Total.Requests, report.Total.Bytes
	for i, day := range report.Days {
		a.Days = append(a.Days, usageDay{report.From.AddDate(0, 0, i).Format(time.DateOnly), day.Requests, day.Bytes})
	}
	versions, err := p.Usage.Versions(l.Name, days)
	if err != nil {
		return nil, answers.Caching{}, err
	}
	for _, v := range versions {
		if version == "" || v.Version == version {
			a.Versions = append(a.Versions, usageVersion{v.Version, v.Requests, v.Bytes})
		}
	}
	for _, f := range p.Usage.Files(l.Name) {
		if (version == "" || f.Version == version) && len(a.Files) < usageFiles {
			a.Files = append(a.Files, usageFile{f.Version, f.Path, int64(math.Round(f.Requests)), int64(math.Round(f.AtLeast))})
		}
	}
	return encodeJSON(a), fiveMinutes, nil
}
