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

// A RoomsOfNode is a node that lets visitors into waiting rooms which the cluster has in common, as the bucket lists
// it. A node that becomes the leader waits until each of them has reported how many are inside.
type RoomsOfNode struct {
	Name  string   `json:"name"` // its data centre's
	Rooms []string `json:"rooms"`
}

const (
	roomedPrefix = "room/"
	roomedID     = 32 // digits of a key
	maxRoomed    = 1 << 20
)

// roomsKey returns the key of the object in the bucket that lists the waiting rooms of the node with this name.
func roomsKey(name string) string {
	return roomedPrefix + kvstore.Sum([]byte(name)).String()[:roomedID]
}

// JoinRooms lists a node and its waiting rooms in the bucket, in place of an earlier list.
func (n *Node) JoinRooms(ctx context.Context, r RoomsOfNode) error {
	data, err := json.Marshal(r)
	if err != nil {
		return err
	}
	return n.Bucket.Put(ctx, roomsKey(r.Name), data)
}

// LeaveRooms removes the list of a node's waiting rooms from the bucket. The caller makes sure that everything that the node has promised to visitors
// has expired.
func (n *Node) LeaveRooms(ctx context.Context, name string) error {
	return n.Bucket.Delete(ctx, roomsKey(name))
}

// Rooms returns the waiting rooms that the bucket lists for the node with this name, none if it does not list the node.
func (n *Node) Rooms(ctx context.Context, name string) ([]string, error) {
	r, err := n.readRooms(ctx, roomsKey(name))
	if errors.Is(err, bucket.ErrNotFound) {
		return nil, nil
	}
	return r.Rooms, err
}

// AllRooms returns the waiting rooms of all nodes that the bucket lists, by the nodes' names. strange has, by its key, an error for each object there
// that is no valid list of a node.
//
// A strange object with the key of a node's list may have replaced that list. So all has its key as the name of a node that has the rooms of all
// others. No such node reports how many visitors are inside, and a new leader waits for it as long as for a node that is lost.
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
		r, err := n.readRooms(ctx, o.Key)
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

// readRooms reads the object with this key, which lists a node's waiting rooms. If no node can have written it, the error is errStrange.
func (n *Node) readRooms(ctx context.Context, key string) (r RoomsOfNode, err error) {
	data, _, err := n.Bucket.Get(ctx, key, maxRoomed)
	if err == nil && (json.Unmarshal(data, &r) != nil || roomsKey(r.Name) != key) || errors.Is(err, bucket.ErrTooLarge) {
		err = errStrange
	}
	if err != nil {
		return r, fmt.Errorf("%s: %s: %w", n.Bucket, key, err)
	}
	return r, nil
}
