package app

import (
	"bytes"
	"context"
	"slices"
	"strings"

	"github.com/larder-cdn/larder/kvstore/bucket"
	"github.com/larder-cdn/larder/logs/cluster"
	"github.com/larder-cdn/larder/server/waitingroom"
	"github.com/larder-cdn/larder/server/waitingroom/record"
)

// recordBackends returns the bucket as the authority of the rooms' settings, if the node has the cluster's key.
func (n *clusterNode) recordBackends(folder bucket.Bucket) record.Backends {
	if n.key == nil {
		return record.Isolated(folder)
	}
	return record.Shared(folder, n.bucket, cluster.RecordSealer{Key: n.key, Record: "rooms"})
}

// recordLeader has the leader change the rooms' settings, if this node follows.
func (n *clusterNode) recordLeader() record.Changer {
	if n.cluster.Leads() {
		return nil
	}
	return forwardedRooms{n}
}

// share has the node share its rooms with the cluster.
func (n *clusterNode) share(ctx context.Context, alone waitingroom.Options, known []string) (waitingroom.Options, runRooms, error) {
	keys, err := n.ticketKeys(alone.Keys)
	if err != nil {
		return alone, nil, err
	}
	shared := alone
	known = n.rooms.Known(ctx, alone.Rooms, known)
	shared.Keys, shared.Cluster, shared.Known = keys, n.rooms.Cluster(), func(name string) bool { return slices.Contains(known, name) }
	return shared, n.rooms.Run, nil
}

// newSharing returns what shares the rooms of the node with its cluster.
func (n *clusterNode) newSharing() *waitingroom.Sharing {
	return waitingroom.NewSharing(waitingroom.SharingOptions{
		Name: n.dataCentre(), Memory: n.memory.rooms, Node: n.cluster, Logger: n.logger,
		Request: func(ctx context.Context, leader string, message []byte) ([]byte, error) {
			if err := n.cannotRequest(leader); err != nil {
				return nil, err
			}
			return requestNode(ctx, n.peers.client, leader+waitingroom.SharingPath, bytes.NewReader(message), waitingroom.MaxMessage)
		},
	})
}

// ticketKeys returns the keys by which a ticket of one node passes at all of them: they follow from the cluster's.
// Tickets from before the node joined are read as well.
func (n *clusterNode) ticketKeys(own *waitingroom.Keyring) (*waitingroom.Keyring, error) {
	if n.key == nil {
		return own, nil // it cannot ask the others either
	}
	secret, err := n.key.Derive("tickets of waiting rooms")
	if err != nil {
		return nil, err
	}
	return own.Under(secret)
}

// dataCentre is the name of the node in its rooms: the same after a restart, and no other node's, even where its data
// folder was copied.
func (n *clusterNode) dataCentre() string {
	if n.peers.url != "" && n.peers.url == strings.TrimSuffix(n.settings.NodeURL, "/") { // else its port changes
		return n.peers.url
	}
	return n.folderName()
}
