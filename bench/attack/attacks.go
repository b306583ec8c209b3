package main

import (
	"context"

	"github.com/larder-cdn/larder/bench/internal/assault"
)

// An attack is what one client does.
type attack struct {
	name string
	ways []string
	args []string // of Larder
	at   int      // how many at a time
	from int      // how many addresses the attacker has; 0 for one. Then the victim has kept connections, too
	npm  bool     // whether Larder has a catalogue and asks a registry
	do   string   // of package assault
	path string
	also func(context.Context, *client) error // what the victim must get beside files
}

var (
	everyWay   = []string{plain, secure, h2, nginx, proxied, proxiedV2}
	fourPlaces = []string{"--max-connections", "400"}
	noCache    = append([]string{"--cache", "4MiB"}, fourPlaces...)
)

var attacks = []attack{
	{name: "slow-readers", ways: everyWay, args: fourPlaces, at: 600, do: assault.Slowly, path: bigFile},
	{name: "slow-readers-uncached", ways: everyWay, args: noCache, at: 600, do: assault.Slowly, path: bigFile},
	{name: "silent", ways: []string{plain, secure, proxied}, args: fourPlaces, at: 600, do: assault.Silent},
	{name: "silent-11000", ways: []string{plain, secure}, at: 11_000, do: assault.Silent},
	{name: "botnet-silent", ways: []string{plain, secure, h2}, at: 16_000, from: 2000, do: assault.Silent},
	{name: "botnet-silent-20000", ways: []string{plain, secure}, at: 20_000, from: 20_000, do: assault.Silent},
	{name: "botnet-half-handshakes", ways: []string{secure}, at: 16_000, from: 2000, do: assault.HalfTLS},
	{name: "botnet-half-handshakes-20000", ways: []string{secure}, at: 20_000, from: 20_000, do: assault.HalfTLS},
	{name: "botnet-churn", ways: []string{plain, secure}, at: 500, from: 100, do: assault.Churn},
	{name: "botnet-slow-readers", ways: []string{plain}, args: []string{"--max-connections", "2000"}, at: 4000, from: 2000, do: assault.Slowly, path: bigFile},
	{name: "botnet-zero-windows", ways: []string{plain, secure}, args: []string{"--max-connections", "2000"}, at: 4000, from: 2000, do: assault.NoRead, path: bigFile},
	{name: "half-a-head", ways: []string{plain, proxied}, args: fourPlaces, at: 600, do: assault.HalfHead},
	{name: "idle", ways: []string{plain, proxied}, args: fourPlaces, at: 600, do: assault.Idle, path: libs + "f1.js"},
	{name: "no-window", ways: []string{h2}, at: 12, do: assault.NoWindow, path: bigFile},
	{name: "no-window-uncached", ways: []string{h2}, args: noCache, at: 12, do: assault.NoWindow, path: bigFile},
	{name: "largest-page", ways: everyWay, at: 64, do: assault.Again, path: largestPage},
	{name: "slow-archives", ways: []string{plain, secure, nginx, proxied}, at: 5, do: assault.Slowly, path: archive, also: gets(archive)},
	{name: "drafts", ways: []string{plain, nginx, proxied}, at: 64, npm: true, do: assault.Again, path: draftPage, also: gets(draftPage)},
	{name: "streams", ways: []string{plain, secure, nginx, proxied}, at: 256, do: assault.Slowly, path: streamPath, also: streams},
}

// origin returns the first address of the attacker. Those of a botnet are 127.16.0.0 and more.
func (a attack) origin() string {
	if a.from > 1 {
		return "127.16.0.0"
	}
	return attacker
}

// launch starts an attack, and returns when all of it has begun.
func launch(ctx context.Context, a attack, t *target) (stop func(), err error) {
	return assault.Launch(ctx, assault.Attack{Do: a.do, Path: a.path, At: a.at, From: a.origin(), Clients: a.from, Address: t.address, Secure: t.secure, H2: t.h2})
}
