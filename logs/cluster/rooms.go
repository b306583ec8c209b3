package cluster

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/kvstore/bucket"
)

// A Roomed is a node that lets visitors into waiting rooms which the cluster has in common, as the bucket lists
// it. A node that begins to write goes by that: it waits until each of them has told how many are inside.
type Roomed struct {
	Name  string   `json:"name"` // its data centre's
	Rooms []string `json:"rooms"`
}

const (
	roomedPrefix = "room/"
	roomedID     = 32 // digits of a key
	maxRoomed    = 1 << 20
)

func roomedKey(name string) string {
	return roomedPrefix + kvstore.Sum([]byte(name)).String()[:roomedID]
}

// Writing asks the bucket for the latest epoch, 0 where there is none, and the URL of the node that writes in it.
func (n *Node) Writing(ctx context.Context) (epoch int64, url string, err error) {
	if epoch, err = n.latestEpoch(ctx); err != nil {
		return 0, "", err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.latest != epoch { // a later one is known meanwhile
		return n.latest, n.writer, nil
	}
	return epoch, n.writer, nil
}

// JoinRooms has the bucket list a node.
func (n *Node) JoinRooms(ctx context.Context, r Roomed) error {
	data, err := json.Marshal(r)
	if err != nil {
		return err
	}
	return n.Bucket.Put(ctx, roomedKey(r.Name), data)
}

// LeaveRooms has the bucket list a node no more. All that it has promised must be over.
func (n *Node) LeaveRooms(ctx context.Context, name string) error {
	return n.Bucket.Delete(ctx, roomedKey(name))
}

// Rooms returns the rooms that the bucket lists for a node, none where it does not list it.
func (n *Node) Rooms(ctx context.Context, name string) ([]string, error) {
	r, err := n.roomed(ctx, roomedKey(name))
	if errors.Is(err, bucket.ErrNotFound) {
		return nil, nil
	}
	return r.Rooms, err
}

// AllRooms returns all nodes that the bucket lists, with their rooms. strange says of each other object there what it is.
// Where a node's word should be, it may have taken the place of one: then its key is listed, with all rooms, as a node that
// never tells how many are inside, so that a node which begins to write waits until it is certain.
func (n *Node) AllRooms(ctx context.Context) (all map[string][]string, strange map[string]error, err error) {
	all, strange = map[string][]string{}, map[string]error{}
	for o, err := range n.Bucket.List(ctx, roomedPrefix, "") {
		if err != nil {
			return nil, nil, err
		}
		if len(all)+len(strange) == maxMembers {
			return nil, nil, fmt.Errorf("%s lists more than %d nodes with waiting rooms; remove those below %s that are gone for good", n.Bucket, maxMembers, roomedPrefix)
		}
		if id, err := hex.DecodeString(strings.TrimPrefix(o.Key, roomedPrefix)); err != nil || len(id) != roomedID/2 {
			strange[o.Key] = errors.New("no node has written it")
			continue
		}
		r, err := n.roomed(ctx, o.Key)
		switch {
		case errors.Is(err, bucket.ErrNotFound):
		case errors.Is(err, errStrange):
			strange[o.Key] = err
		case err != nil:
			return nil, nil, err
		default:
			all[r.Name] = slices.Clone(r.Rooms)
		}
	}
	var rooms []string
	for _, of := range all {
		rooms = append(rooms, of...)
	}
	for key, why := range strange {
		if errors.Is(why, errStrange) {
			all[key] = slices.Clone(rooms)
		}
	}
	return all, strange, nil
}

// errStrange is in the errors of objects that are not what a node has written there.
var errStrange = errors.New("it is not a node's list of its waiting rooms")

func (n *Node) roomed(ctx context.Context, key string) (r Roomed, err error) {
	data, _, err := n.Bucket.Get(ctx, key, maxRoomed)
	if err == nil && (json.Unmarshal(data, &r) != nil || roomedKey(r.Name) != key) || errors.Is(err, bucket.ErrTooLarge) {
		err = errStrange
	}
	if err != nil {
		return r, fmt.Errorf("%s: %s: %w", n.Bucket, key, err)
	}
	return r, nil
}
