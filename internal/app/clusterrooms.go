package app

import (
	"bytes"
	"context"
	"slices"
	"strings"

	"github.com/larder-cdn/larder/kvstore/bucket"
	"github.com/larder-cdn/larder/logs/cluster"
	"github.com/larder-cdn/larder/server/waitingroom"
)

// recordBackends implements [roomsCluster]: the versions of the waiting rooms' settings are stored encrypted in the cluster's
// bucket, with a copy in folder. Without the cluster's key the node has its own versions, in folder only.
func (n *clusterNode) recordBackends(folder bucket.Bucket) waitingroom.RecordBackends {
	if n.key == nil {
		return waitingroom.IsolatedRecord(folder)
	}
	return waitingroom.SharedRecord(folder, n.bucket, cluster.RecordSealer{Key: n.key, Record: "rooms"})
}

// recordLeader implements [roomsCluster]: it returns a Changer that forwards changes of the waiting rooms' settings to the
// leader, nil if this node leads.
func (n *clusterNode) recordLeader() waitingroom.RecordChanger {
	if n.cluster.Leads() {
		return nil
	}
	return remoteRooms{n}
}

// shareState implements [roomsCluster]: it returns the options of waiting rooms whose state the nodes share, and the function
// that exchanges the state while the rooms are open. alone are the options of rooms that share nothing, and known the names of
// the rooms that had state before, from the key folder; those that the bucket lists for this node are added. After an error it
// returns alone.
func (n *clusterNode) shareState(ctx context.Context, alone waitingroom.Options, known []string) (waitingroom.Options, runRooms, error) {
	keys, err := n.ticketKeys(alone.Keys)
	if err != nil {
		return alone, nil, err
	}
	shared := alone
	known = n.rooms.Known(ctx, alone.Rooms, known)
	shared.Keys, shared.Cluster, shared.Known = keys, n.rooms.Cluster(), func(name string) bool { return slices.Contains(known, name) }
	return shared, n.rooms.Run, nil
}

// newRoomSharing returns the exchange of the waiting rooms' state with the other nodes, by requests to the leader. It sends
// nothing yet.
func (n *clusterNode) newRoomSharing() *waitingroom.Sharing {
	return waitingroom.NewSharing(waitingroom.SharingOptions{
		Name: n.nodeName(), Memory: n.memory.rooms, Node: n.cluster, Logger: n.logger,
		Request: func(ctx context.Context, leader string, message []byte) ([]byte, error) {
			if err := n.checkLeaderURL(leader); err != nil {
				return nil, err
			}
			return postToLeader(ctx, n.peers.client, leader+waitingroom.SharingPath, bytes.NewReader(message), waitingroom.MaxMessage)
		},
	})
}

// ticketKeys returns the keys that encrypt waiting-room tickets, which are derived from the cluster's key, so that all nodes
// accept the same tickets. They also decrypt tickets made with own, from before the node joined the cluster. Without the
// cluster's key it returns own.
func (n *clusterNode) ticketKeys(own *waitingroom.Keyring) (*waitingroom.Keyring, error) {
	if n.key == nil {
		return own, nil // without the key it shares no rooms either
	}
	secret, err := n.key.Derive("tickets of waiting rooms")
	if err != nil {
		return nil, err
	}
	return own.WithFirst(secret)
}

// nodeName returns the name of the node in its waiting rooms: its URL if the settings name the port, else MACHINE:FOLDER with its
// data folder. It stays the same after a restart, and is unique even if the data folder was copied.
func (n *clusterNode) nodeName() string {
	if n.peers.url != "" && n.peers.url == strings.TrimSuffix(n.settings.NodeURL, "/") { // else its port changes
		return n.peers.url
	}
	return n.defaultName()
}
