package main

import (
	"context"
	"fmt"
	"net/http"

	"golang.org/x/mod/sumdb/tlog"

	"github.com/larder-cdn/larder/logs/tiles"
)

// servedTiles reads the tiles of the log that a process serves.
type servedTiles struct {
	ctx       context.Context
	transport http.RoundTripper
	url       string
}

// headBefore returns the head that the log of a process had at an earlier size. Each hash that it uses is proven to be in the log's present tree.
func (p *play) headBefore(ctx context.Context, a *actor, size int64) (logHead, error) {
	if err := p.awaitSize(ctx, a, size); err != nil {
		return logHead{}, err
	}
	now, err := p.headAt(ctx, a)
	if err != nil {
		return logHead{}, err
	}
	e := directEntrance(a)
	t := p.transport(e)
	defer t.CloseIdleConnections()
	return headOfTree(now, size, &servedTiles{ctx, t, e.url})
}

// headOfTree returns the head of the first entries of a log, by its tiles.
func headOfTree(now logHead, size int64, r tlog.TileReader) (logHead, error) {
	root, err := tlog.ParseHash(now.Root)
	if err != nil {
		return logHead{}, err
	}
	if size == 0 || size > now.Size {
		return logHead{}, fmt.Errorf("a log of %d entries has no tree of %d", now.Size, size)
	}
	before, err := tlog.TreeHash(size, tlog.TileHashReader(tlog.Tree{N: now.Size, Hash: root}, r))
	return logHead{size, before.String()}, err
}

// Height implements [tlog.TileReader].
func (s *servedTiles) Height() int { return tiles.Height }

// ReadTiles implements [tlog.TileReader]. It requests one tile after the other.
func (s *servedTiles) ReadTiles(wanted []tlog.Tile) (data [][]byte, err error) {
	for _, tile := range wanted {
		hashes, err := s.readTile(tile)
		if err != nil {
			return nil, err
		}
		data = append(data, hashes)
	}
	return data, nil
}

func (s *servedTiles) readTile(tile tlog.Tile) ([]byte, error) {
	path := tiles.TilePath(tile)
	data, err := fetch(s.ctx, s.transport, s.url+path)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if want := tile.W * tlog.HashSize; len(data) != want {
		err = fmt.Errorf("%s has %d bytes, not %d", path, len(data), want)
	}
	return data, err
}

// SaveTiles implements [tlog.TileReader]. It saves nothing.
func (s *servedTiles) SaveTiles([]tlog.Tile, [][]byte) {}
