package bot

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/dustin/go-humanize/english"

	"github.com/larder-cdn/larder/bot/fetch"
	"github.com/larder-cdn/larder/bot/npm"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/logs/views"
)

// The bounds of patience with what is not what upstream promises: an error page, a download that was cut short, a
// flipped bit, in an archive or in the packument. Bytes are fetched again at once, over another connection, and after
// wrongRest; then the release waits as one that failed. It is refused when the same came mostWrong times, over wrongFor
// at least, from an upstream that serves others.
const (
	wrongTries = 3
	wrongRest  = 10 * time.Second
	mostWrong  = 3
	wrongFor   = 6 * time.Hour
)

// longestRest is the longest pause between two attempts of what fails although its upstream is up.
const longestRest = time.Hour

// passing is an error that may pass, whatever it is about.
type passing struct{ error }

func (p passing) Unwrap() error { return p.error }

// unverified is that an archive with no hash to compare it with cannot be used.
type unverified struct {
	error
	hash string // of what came
}

func (u unverified) Unwrap() error { return u.error }

// wrongBytes returns the hash of what came in place of an archive, "" where err is about something else.
func wrongBytes(err error) string {
	var broken *npm.IntegrityError
	var unusable unverified
	switch {
	case errors.As(err, &broken):
		return broken.Got
	case errors.As(err, &unusable):
		return unusable.hash
	}
	return ""
}

// wrongWords returns the hash of what is wrong with what a packument says of a release, or with where that leads, ""
// where err is about something else.
func wrongWords(err error) string {
	var signature *npm.SignatureError
	var malformed *npm.MalformedError
	var broken *npm.IntegrityError
	if errors.As(err, &signature) || errors.As(err, &malformed) || errors.As(err, &broken) && broken.Got == "" || errors.Is(err, fetch.ErrForbidden) {
		return kvstore.Sum([]byte(err.Error())).String()
	}
	return ""
}

// wrong is wrongBytes or wrongWords.
func wrong(err error) string { return cmp.Or(wrongBytes(err), wrongWords(err)) }

// fetchRight downloads an archive with the bytes that upstream promises.
func (b *Bot) fetchRight(ctx context.Context, t task, file *os.File, came *views.WrongBytes) (*fetched, error) {
	for try := 1; ; try++ {
		got, err := b.source(t.pkg).fetch(ctx, t.pkg, t.pkg.Autoupdate.Target, t.version, file)
		if errors.Is(err, fetch.ErrNotFound) {
			err = vanishedError{err, true}
		}
		words := wrongWords(err)
		if words == "" || errors.Is(err, fetch.ErrForbidden) {
			b.outages.record(archivesOf(t.pkg), t.pkg.Name, err)
		}
		hash := wrong(err)
		if hash == "" {
			return got, err
		}
		now := b.options.Now()
		if hash != came.Hash || came.First.After(now) {
			*came = views.WrongBytes{Hash: hash, First: now}
		}
		came.Times++
		switch {
		case came.Times >= mostWrong && now.Sub(came.First) >= wrongFor && !b.outages.down(archivesOf(t.pkg)) && !isPage(file):
			return nil, &refusal{reason: err.Error() + seen(*came), cause: err}
		case try == wrongTries, words != "": // another packument comes with the next attempt
			return nil, passing{err}
		case try > 1:
			if err := b.options.Sleep(ctx, wrongRest); err != nil {
				return nil, err
			}
		}
		if b.options.Npm != nil {
			b.options.Npm.Reconnect()
		}
	}
}

// isPage reports whether a download is a page that says why there is no archive, however often it comes.
func isPage(file *os.File) bool {
	head := make([]byte, 64)
	n, _ := file.ReadAt(head, 0)
	text := bytes.TrimSpace(head[:n])
	return len(text) > 0 && (text[0] == '<' || text[0] == '{')
}

// seen says how often the same came, for the end of a sentence.
func seen(w views.WrongBytes) string {
	return fmt.Sprintf("; seen %s since %s", english.Plural(w.Times, "time", ""), w.First.UTC().Format(time.DateTime))
}
