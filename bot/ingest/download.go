package ingest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/dustin/go-humanize/english"

	"github.com/larder-cdn/larder/bot/fetch"
	"github.com/larder-cdn/larder/bot/sources"
	"github.com/larder-cdn/larder/logs/views"
)

// The limits of retries when an upstream sends other bytes than it promised: an error page, a truncated download or a flipped
// bit, in an archive or in the packument. The bot downloads them again at once, over another connection, and after wrongRest.
// Then the release waits as after a failure. It is refused if the same bytes came mostWrong times over at least wrongFor, from an
// upstream that serves other packages.
const (
	wrongTries = 3
	wrongRest  = 10 * time.Second
	mostWrong  = 3
	wrongFor   = 6 * time.Hour
)

// fetchVerified downloads the release of the task t from its upstream into file, and verifies the bytes. If an archive is wrong,
// it reconnects and downloads it again, at once and then after ten seconds, three times in all. Then, and at once if the
// packument is wrong (npm's list of versions), the error is a [sources.Transient]. It is a *sources.Refusal instead if the same
// wrong bytes have come at least three times over six hours from an upstream that serves other packages, and are no page in HTML
// or JSON. came has the last wrong hash, how often it came, and since when; fetchVerified updates it, and the caller stores it
// for the next attempt. If the archive is gone, the error is a [sources.VanishedError]; other errors are those of the download.
// It reports outcomes of archive downloads to the upstream's circuit breaker.
func (pb *Publisher) fetchVerified(ctx context.Context, t Task, file *os.File, came *views.WrongBytes) (*sources.Fetched, error) {
	for try := 1; ; try++ {
		got, err := pb.options.Sources.ForPackage(t.Pkg).Fetch(ctx, t.Pkg, t.Pkg.Autoupdate.Target, t.Version, file)
		if errors.Is(err, fetch.ErrNotFound) {
			err = sources.VanishedError{Err: err, Archive: true}
		}
		words := sources.WrongMetadataHash(err)
		if words == "" || errors.Is(err, fetch.ErrForbidden) {
			pb.options.Breakers.Record(sources.ArchivesName(t.Pkg), t.Pkg.Name, err)
		}
		hash := sources.WrongHash(err)
		if hash == "" {
			return got, err
		}
		now := pb.options.Now()
		if hash != came.Hash || came.First.After(now) {
			*came = views.WrongBytes{Hash: hash, First: now}
		}
		came.Times++
		switch {
		case came.Times >= mostWrong && now.Sub(came.First) >= wrongFor && !pb.options.Breakers.IsDown(sources.ArchivesName(t.Pkg)) && !isErrorPage(file):
			return nil, &sources.Refusal{Reason: err.Error() + describeWrong(*came), Cause: err}
		case try == wrongTries, words != "": // another packument comes with the next attempt
			return nil, sources.Transient{Err: err}
		case try > 1:
			if err := pb.options.Sleep(ctx, wrongRest); err != nil {
				return nil, err
			}
		}
		if pb.options.Npm != nil {
			pb.options.Npm.Reconnect()
		}
	}
}

// isErrorPage reports whether a downloaded file seems to be a page in HTML or JSON instead of an archive: the first character
// besides white space in its first 64 bytes is < or {. It is false if these are all white space, or if the file cannot be read.
func isErrorPage(file *os.File) bool {
	head := make([]byte, 64)
	n, _ := file.ReadAt(head, 0)
	text := bytes.TrimSpace(head[:n])
	return len(text) > 0 && (text[0] == '<' || text[0] == '{')
}

// describeWrong returns the end of a sentence about a failed download: how often upstream sent the same wrong bytes, and since
// when.
func describeWrong(w views.WrongBytes) string {
	return fmt.Sprintf("; seen %s since %s", english.Plural(w.Times, "time", ""), w.First.UTC().Format(time.DateTime))
}
