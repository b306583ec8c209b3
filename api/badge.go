package api

import (
	"context"
	"fmt"
	"html"
	"strings"
	"unicode/utf8"

	"github.com/larder-cdn/larder/internal/answers"
	"github.com/larder-cdn/larder/internal/text"
)

const (
	badgeSuffix = ".svg"
	maxBadge    = 40 // characters of a part
	badgeChar   = 7  // pixels of a character of Verdana at 11 pixels, rounded up
	badgePad    = 12 // pixels beside the text of a part
)

// badge returns the response to /badge/{library}.svg: an SVG picture of the library's latest version here, or that nothing
// is published, for READMEs. For a library that is not registered the error is [library.ErrNoLibrary]; without .svg in the path it
// is [answers.NoEndpoint].
func (p *public) badge(ctx context.Context, r *request) (*answers.Body, answers.Caching, error) {
	name, ok := strings.CutSuffix(r.params["file"], badgeSuffix)
	if !ok {
		return nil, answers.Caching{}, answers.NoEndpoint
	}
	l, err := p.Library.Library(ctx, name)
	if err != nil {
		return nil, answers.Caching{}, err
	}
	value, color := "not published", "#76614a"
	if l.Version != "" {
		value, color = l.Version, "#12603e"
	}
	return answers.NewBody("image/svg+xml", drawBadge(p.Name, value, color)), fiveMinutes, nil
}

// drawBadge returns an SVG with a label on gray and, right of it, a value on a background of the CSS color, which it does
// not escape. It cuts both texts to 40 characters, and escapes them.
func drawBadge(label, value, color string) []byte {
	label, value = text.CutRunes(label, maxBadge), text.CutRunes(value, maxBadge)
	left, right := badgeWidth(label), badgeWidth(value)
	label, value = html.EscapeString(label), html.EscapeString(value)
	return fmt.Appendf(nil, `<svg xmlns="http://www.w3.org/2000/svg" width="%[1]d" height="20" role="img" aria-label="%[4]s: %[5]s"><title>%[4]s: %[5]s</title>`+
		`<clipPath id="r"><rect width="%[1]d" height="20" rx="3"/></clipPath>`+
		`<g clip-path="url(#r)"><rect width="%[2]d" height="20" fill="#444c47"/><rect x="%[2]d" width="%[3]d" height="20" fill="%[6]s"/></g>`+
		`<g fill="#fff" font-family="Verdana,DejaVu Sans,sans-serif" font-size="11" text-anchor="middle"><text x="%[7]d" y="14">%[4]s</text><text x="%[8]d" y="14">%[5]s</text></g></svg>`,
		left+right, left, right, label, value, color, left/2, left+right/2)
}

// badgeWidth returns how wide, in pixels, the part of a badge with this text is.
func badgeWidth(text string) int { return badgeChar*utf8.RuneCountInString(text) + badgePad }
