package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// salvageOne damages the files by which the store of a stopped process knows its tables, alternately by removing the marker and by damaging
// the newest MANIFEST. `larder repair`, without any source, must bring back every entry and every file.
func (p *play) salvageOne(ctx context.Context, e *event) error {
	a := p.any([]*actor{p.nodes[1], p.nodes[2], p.mirror})
	releases, least, err := p.settle(ctx, a)
	if err != nil {
		return err
	}
	p.allowEnd(e, a)
	if err := a.end(syscall.SIGTERM); err != nil {
		return err
	}
	before, err := a.fsckHead(ctx)
	if err != nil {
		return err
	}
	p.salvages++
	damage := removeMarker
	if p.salvages%2 == 0 {
		damage = damageManifest
	}
	what, err := damage(filepath.Join(a.data(), "store"))
	if err != nil {
		return err
	}
	e.What = a.name + ": " + what
	if _, err := a.fsckHead(ctx); err == nil {
		return errors.New("fsck does not find the damage")
	}
	report := &copyReport{kind: salvageKind, what: fmt.Sprintf("the store of %s (%s)", a.name, what), want: before, least: least}
	if _, err := a.larder(ctx, "repair", "--keys", a.keys()); err != nil {
		return err
	}
	if report.got, err = a.fsckHead(ctx); err != nil {
		report.wrong = append(report.wrong, err.Error())
	}
	if err := a.start(ctx); err != nil {
		return err
	}
	if err := errors.Join(p.compare(ctx, a, releases, report), p.compareLog(ctx, report)); err != nil {
		return err
	}
	p.notes.addCopy(report)
	if e.What += fmt.Sprintf("; repair builds a new store of its %d entries", report.got.Size); len(report.failures()) > 0 {
		e.What += ", which is wrong"
	}
	return removeAsides(a)
}

// removeAsides deletes the damaged stores that a repair kept.
func removeAsides(a *actor) error {
	asides, err := filepath.Glob(filepath.Join(a.data(), "store.*-*"))
	for _, aside := range asides {
		err = errors.Join(err, os.RemoveAll(aside))
	}
	return err
}

// removeMarker deletes the file of a store that names the current MANIFEST.
func removeMarker(store string) (what string, err error) {
	markers, err := filepath.Glob(filepath.Join(store, "marker.manifest.*"))
	if err == nil && len(markers) == 0 {
		err = errors.New("the store has no marker")
	}
	for _, marker := range markers {
		err = errors.Join(err, os.Remove(marker))
	}
	return "the marker of the MANIFEST is removed", err
}

// damageManifest flips a bit in the middle of a store's newest MANIFEST.
func damageManifest(store string) (what string, err error) {
	manifests, err := filepath.Glob(filepath.Join(store, "MANIFEST-*"))
	if err != nil {
		return "", err
	}
	if len(manifests) == 0 {
		return "", errors.New("the store has no MANIFEST")
	}
	newest := slices.MaxFunc(manifests, func(a, b string) int { return cmp.Compare(manifestNumber(a), manifestNumber(b)) })
	info, err := os.Stat(newest)
	if err != nil {
		return "", err
	}
	return "a flipped bit in " + filepath.Base(newest), flipBit(newest, info.Size()/2)
}

// manifestNumber returns the number in the name of a MANIFEST.
func manifestNumber(file string) int {
	n, _ := strconv.Atoi(strings.TrimPrefix(filepath.Base(file), "MANIFEST-"))
	return n
}
