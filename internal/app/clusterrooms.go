package app

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/larder-cdn/larder/internal/retry"
	"github.com/larder-cdn/larder/kvstore/bucket"
	"github.com/larder-cdn/larder/logs/cluster"
	"github.com/larder-cdn/larder/server/waitingroom"
	"github.com/larder-cdn/larder/server/waitingroom/config"
	"github.com/larder-cdn/larder/server/waitingroom/nodes"
	"github.com/larder-cdn/larder/server/waitingroom/record"
)

// In a cluster the node that writes has the waiting rooms' global objects, and each node asks it.

// Times of the rooms of a cluster, and where a node is asked about them.
const (
	roomsPath   = "/rooms"
	maxAsked    = 16 << 20        // bytes of a question, and of an answer
	roomsLook   = time.Second     // between two looks at which node writes
	roomsSoon   = time.Second / 5 // and where a node has yet to learn what time it is there
	roomsListed = time.Minute     // between two looks at, or words in, the bucket's list
	roomsSilent = 2 * time.Hour   // after which a node is taken off the list: no promise lasts as long
	roomsFirst  = 3 * time.Second // that the bucket has to answer at the start whether the node had the rooms before
)

// sharedRooms are the rooms of a node that are the cluster's.
type sharedRooms struct {
	node   *clusterNode
	member *nodes.Member
	client *http.Client
	writer atomic.Pointer[string] // where the node that writes is asked; nil where none is known
	listed atomic.Bool            // the bucket lists this node
	joined []string               // rooms that the list has of this node
	at     time.Time              // when they were listed
	looked time.Time              // when the list was read
	// strange are the objects in the list that no node has written, and logged.
	strange map[string]error
}

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

// share has the node take part in the rooms of the cluster. known are the rooms of which it had state.
func (n *clusterNode) share(ctx context.Context, configured []config.Room, known []string, keys *waitingroom.Keyring) (roomShare, error) {
	keys, err := n.ticketKeys(keys)
	if err != nil {
		return roomShare{}, err
	}
	s := &sharedRooms{node: n, member: nodes.NewMember(n.dataCentre(), n.memory.clock), client: n.askingClient(true)}
	share := roomShare{keys: keys, known: n.memory.hadRooms, cluster: &waitingroom.Cluster{Member: s.member, Carry: s.carry}, run: s.run}
	if n.memory.hadRooms != nil && !n.memory.clock.Known() { // nothing was decided in the runs before this one
		return share, nil
	}
	ctx, cancel := context.WithTimeout(ctx, roomsFirst)
	defer cancel()
	before, err := n.cluster.Rooms(ctx, s.member.Name)
	if err != nil { // it may have had all of them
		for i := range configured {
			before = append(before, configured[i].Name)
		}
	}
	n.memory.hadRooms = append(append([]string{}, known...), before...)
	share.known = n.memory.hadRooms
	return share, nil
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

// carry asks the node that writes, which may be this one.
func (s *sharedRooms) carry(ctx context.Context, q nodes.Request) (a nodes.Answer, err error) {
	if !s.listed.Load() {
		return a, errors.New("the bucket does not list this node yet")
	}
	if o := s.node.owner.Load(); o != nil && o.Epoch() == q.Epoch {
		return o.Answer(q), nil
	}
	at := s.writer.Load()
	if at == nil {
		return a, &cluster.NotWriterError{}
	}
	if err := s.node.cannotAsk(*at); err != nil {
		return a, err
	}
	question, err := json.Marshal(q)
	if err != nil {
		return a, err
	}
	ctx, cancel := context.WithTimeout(ctx, nodes.Within) // a later answer does not count
	defer cancel()
	said, err := ask(ctx, s.client, *at+roomsPath, bytes.NewReader(question), maxAsked)
	if err == nil {
		err = json.Unmarshal(said, &a)
	}
	return a, err
}

// handleRoomRequests serves the other nodes, which send their reports and request grants.
func (n *clusterNode) handleRoomRequests() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var q nodes.Request
		if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxAsked)).Decode(&q); r.Method != http.MethodPost || err != nil {
			http.Error(w, "want POST with a request about rooms in JSON", http.StatusBadRequest)
			return
		}
		a := nodes.Answer{Refused: nodes.NotOwner}
		if o := n.owner.Load(); o != nil {
			a = o.Answer(q)
		}
		w.Header().Set("Content-Type", "application/json")
		json.NewEncoder(w).Encode(a) //nolint:errcheck // the node asks again
	})
}

// run keeps finding out, until ctx ends, which node has the global objects. On that node it also makes sure that no other
// node has taken its place.
func (s *sharedRooms) run(ctx context.Context, rooms *waitingroom.Rooms) {
	defer s.client.CloseIdleConnections()
	if status := s.node.cluster.Status(); status.Leads {
		s.node.owner.Store(nodes.NewOwner(status.Epoch, s.member.Clock, rooms.Holds))
		defer s.node.owner.Store(nil)
	}
	failed := false
	for ctx.Err() == nil {
		err := s.look(ctx, rooms)
		if err != nil && !failed && ctx.Err() == nil {
			s.node.logger.Warn("couldn't read the state of the cluster's waiting rooms; trying again", "err", err)
		}
		failed = err != nil
		for next := time.Now().Add(roomsLook); ctx.Err() == nil && time.Now().Before(next); {
			retry.Sleep(ctx, roomsSoon) //nolint:errcheck // the loop sees that ctx has ended
			o := s.node.owner.Load()
			if _, follows := s.member.Epoch(); err == nil && (!follows || o != nil && o.Lacks()) {
				break
			}
		}
	}
}

// look has the bucket list this node, learns which node writes, and asks that one for the time if it has yet to.
func (s *sharedRooms) look(ctx context.Context, rooms *waitingroom.Rooms) error {
	ctx, cancel := context.WithTimeout(ctx, nodes.Sure)
	defer cancel()
	unlisted := s.join(ctx, rooms.Shared())
	if unlisted != nil && !s.listed.Load() {
		return unlisted
	}
	began := s.node.memory.elapsed()
	epoch, url, err := s.node.cluster.Writing(ctx) // after it was listed: a writer that does not know of it has an epoch that it sees
	if err != nil {
		return err
	}
	s.member.Learn(epoch)
	s.writer.Store(&url)
	if o := s.node.owner.Load(); o != nil {
		o.Read(began, epoch)
		if err := s.tend(ctx, o); err != nil {
			return err
		}
	}
	s.listed.Store(true)
	if _, follows := s.member.Epoch(); follows || epoch == 0 { // 0: no node has published yet
		return unlisted
	}
	q := s.member.Ask()
	a, err := s.carry(ctx, q.Request)
	if err == nil {
		_, err = s.member.Take(q, a)
	}
	if refused := (*nodes.RefusedError)(nil); errors.As(err, &refused) && refused.Why == nodes.Unlisted {
		if time.Since(s.at) < 2*roomsLook { // the node that writes has yet to look
			return unlisted
		}
		s.at = time.Time{} // the bucket may have lost it
	}
	return err
}

// join has the bucket list this node.
func (s *sharedRooms) join(ctx context.Context, rooms []string) error {
	if slices.Equal(rooms, s.joined) && time.Since(s.at) < roomsListed {
		return nil
	}
	now := time.Now()
	if err := s.node.cluster.JoinRooms(ctx, cluster.Roomed{Name: s.member.Name, Rooms: rooms}); err != nil {
		return err
	}
	s.joined, s.at = rooms, now
	return nil
}

// tend brings up to date which nodes the owner answers.
func (s *sharedRooms) tend(ctx context.Context, o *nodes.Owner) error {
	if !o.Lacks() && time.Since(s.looked) < roomsListed {
		return nil
	}
	all, strange, err := s.node.cluster.AllRooms(ctx)
	if err != nil {
		return err
	}
	for key, why := range strange {
		if s.strange[key] == nil {
			s.node.logger.Warn("the list of nodes with waiting rooms in the bucket has an object that no node has written; remove it", "object", key, "err", why)
		}
	}
	s.strange = strange
	o.List(all)
	s.looked = time.Now()
	for _, name := range o.Silent(roomsSilent) {
		o.Drop(name)
		if err := s.node.cluster.LeaveRooms(ctx, name); err != nil {
			return err
		}
		s.node.logger.Info("the waiting rooms no longer wait for a node, because it has been silent for long", "node", name, "silent", roomsSilent)
	}
	return nil
}
