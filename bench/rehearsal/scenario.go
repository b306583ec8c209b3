package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"
)

// What may happen, in the order in which a deck of it is made.
const (
	killKind        = "kill"
	stopKind        = "stop the writer"
	diskKind        = "fill a disk"
	flipKind        = "flip bits"
	upgradeKind     = "upgrade"
	reloadKind      = "reload"
	withdrawKind    = "withdraw"
	bucketKind      = "lose the bucket"
	certificateKind = "renew a certificate"
	attackKind      = "attack"
	clockKind       = "move the clock"
	botnetKind      = "botnet"
	freezeKind      = "freeze a mirror"
	bundleKind      = "mirror a bundle"
	backupKind      = "restore a backup"
	salvageKind     = "salvage a store"
	promoteKind     = "promote while reloading"
)

var kinds = []string{killKind, stopKind, diskKind, flipKind, upgradeKind, reloadKind, withdrawKind, bucketKind, certificateKind, attackKind, clockKind,
	botnetKind, freezeKind, bundleKind, backupKind, salvageKind, promoteKind}

// often are the kinds of which a deck has more than one.
var often = map[string]int{killKind: 2, withdrawKind: 3, reloadKind: 1, attackKind: 2, salvageKind: 2}

// drawDeck returns everything that may happen, in an order of its own. What is selected, by words of a kind separated by commas,
// is all of it.
func drawDeck(random *rand.Rand, only string) (deck []string) {
	for _, kind := range kinds {
		selected := slices.ContainsFunc(strings.Split(only, ","), func(word string) bool { return strings.Contains(kind, word) })
		for range max(1, often[kind]) {
			if selected {
				deck = append(deck, kind)
			}
		}
	}
	random.Shuffle(len(deck), func(i, j int) { deck[i], deck[j] = deck[j], deck[i] })
	return deck
}

const (
	// rest is between two events.
	rest = 4 * time.Second
	// recovery is for how long at the end nothing more begins.
	recovery = 20 * time.Second
)

// scenario has one event happen after the other, until there is too little time for another.
func (p *play) scenario(ctx context.Context) error {
	end := time.Now().Add(p.length - recovery)
	do := map[string]func(context.Context, *event) error{
		killKind: p.killOne, stopKind: p.stopWriter, diskKind: p.fillDisk, flipKind: p.flipBits, upgradeKind: p.upgradeOne, reloadKind: p.reloadOne,
		withdrawKind: p.withdrawOne, bucketKind: p.loseBucket, certificateKind: p.renewCertificate, attackKind: p.attackOne, clockKind: p.moveClock, botnetKind: p.joinBotnet, freezeKind: p.freezeMirror,
		bundleKind: p.bundleOne, backupKind: p.backUpOne, salvageKind: p.salvageOne, promoteKind: p.promoteOne,
	}
	skipped := map[string]bool{}
	for {
		for _, kind := range drawDeck(p.random, p.only) {
			if skipped[kind] {
				continue
			}
			if sleep(ctx, rest) != nil || time.Now().After(end) {
				return nil
			}
			e := p.notes.begins(kind)
			e.Failed = do[kind](ctx, e)
			if e.Skipped {
				skipped[kind] = true
			} else if e.Failed == nil {
				e.Failed = p.recovers(ctx)
			}
			p.notes.ends(e)
			if ctx.Err() != nil {
				e.Failed, e.over = nil, true // the play is over
				e.What += " (the play ended meanwhile)"
			}
			fmt.Printf("%7s  %s: %s\n", e.Begin.Sub(p.notes.begin).Round(time.Second), kind, e.What)
			if e.Failed != nil {
				fmt.Println("         which failed:", e.Failed)
				p.revive(ctx)
			}
		}
		if len(skipped) == len(kinds) {
			return nil
		}
	}
}

// revive starts what an event that failed has left ended, so that the play goes on.
func (p *play) revive(ctx context.Context) {
	for _, a := range p.actors() {
		if pid := a.getPID(); pid != 0 && !gone(pid) {
			continue
		}
		if err := a.start(ctx); err != nil {
			fmt.Println("        ", err)
		}
	}
}

// recovers waits until every process says that all is well, and has what the others have.
func (p *play) recovers(ctx context.Context) error {
	for _, a := range p.actors() {
		var err error
		if waitErr := eventually(ctx, a.name+" is ready", func() bool {
			err = a.ready(ctx)
			return err == nil
		}); waitErr != nil {
			return fmt.Errorf("%w: %w", waitErr, err)
		}
	}
	return eventually(ctx, "a node publishes", func() bool { return p.writer(ctx) != nil })
}

// writer is the node that publishes, nil while there is none.
func (p *play) writer(ctx context.Context) *actor {
	for _, a := range p.nodes {
		if a.getPID() != 0 && a.publishes(ctx) {
			return a
		}
	}
	return nil
}

// any draws one of the actors.
func (p *play) any(of []*actor) *actor { return of[p.random.IntN(len(of))] }

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}
