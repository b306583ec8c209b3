package waitingroom

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"slices"
	"sync/atomic"
	"time"

	"github.com/larder-cdn/larder/internal/retry"
	"github.com/larder-cdn/larder/logs/cluster"
	"github.com/larder-cdn/larder/server/waitingroom/config"
)

// SharingPath is the path of the requests of a cluster's nodes to the leader about the rooms.
const SharingPath = "/rooms"

// MaxMessage bounds a message between nodes, in bytes.
const MaxMessage = 16 << 20

// Intervals of a node that shares its rooms.
const (
	leaderInterval = time.Second     // between two polls of the bucket for the leader
	clockInterval  = time.Second / 5 // the same for a node that has yet to learn the leader's time
	listInterval   = time.Minute     // between two reads of the bucket's list of nodes, and two renewals of the own entry
	silentTime     = 2 * time.Hour   // after which a node is taken off the list: no promise lasts as long
	knownTimeout   = 3 * time.Second // for the bucket to say at the start whether the node had the rooms before
)

// A SharingMemory is the state of a node's shared rooms that outlives a run of its roles.
type SharingMemory struct {
	clock   *Clock
	elapsed func() time.Duration // monotonic time of the process
	known   []string             // rooms of which the node had state when the process started; nil before that is known
}

// NewSharingMemory returns the state that a process keeps about its shared rooms across restarts of its roles. started is when
// the process started.
func NewSharingMemory(started time.Time) *SharingMemory {
	elapsed := func() time.Duration { return time.Since(started) }
	return &SharingMemory{clock: NewClock(elapsed, started), elapsed: elapsed}
}

// SharingOptions say how a node shares its rooms.
type SharingOptions struct {
	Name   string // of the node in its rooms: the same after a restart, and no other node's
	Memory *SharingMemory
	Node   *cluster.Node
	// Request sends a message to [SharingPath] of the leader at a URL, and returns the response.
	Request func(ctx context.Context, leader string, message []byte) ([]byte, error)
	Logger  *slog.Logger
}

// A Sharing has a node share its rooms with its cluster: the leader has the global objects of the rooms, and each node queries it.
type Sharing struct {
	options SharingOptions
	member  *Member
	leading atomic.Pointer[Leader] // while this node leads
	leader  atomic.Pointer[string] // the URL of the leader; nil if none is known
	listed  atomic.Bool            // the bucket lists this node
	joined  []string               // rooms that the list has of this node
	renewed time.Time              // when they were listed
	read    time.Time              // when the list was read
	// unreadable are the objects in the list that no node has written, and that were logged.
	unreadable map[string]error
}

// NewSharing returns a Sharing for one run of a node's role. It reads and sends nothing before [Sharing.Run], except by Known.
func NewSharing(o SharingOptions) *Sharing {
	return &Sharing{options: o, member: NewMember(o.Name, o.Memory.clock)}
}

// Cluster returns the connection to the cluster that [Options] need to share the rooms with the other nodes.
func (s *Sharing) Cluster() *Cluster { return &Cluster{Member: s.member, Carry: s.send} }

// Known returns the rooms of which this node may have state from an earlier process: those in known, from the key folder, and
// those that the bucket lists for the node. If the list cannot be read within three seconds, it takes all that are configured. As
// long as the node has not learnt the leader's time, later calls return the same. A name may be there twice.
func (s *Sharing) Known(ctx context.Context, configured []config.Room, known []string) []string {
	m := s.options.Memory
	if m.known != nil && !m.clock.Known() { // nothing was decided in the runs before this one
		return m.known
	}
	ctx, cancel := context.WithTimeout(ctx, knownTimeout)
	defer cancel()
	before, err := s.options.Node.Rooms(ctx, s.member.Name)
	if err != nil { // it may have had all of them
		for i := range configured {
			before = append(before, configured[i].Name)
		}
	}
	m.known = append(append([]string{}, known...), before...)
	return m.known
}

// send sends a request to the leader and returns the response, which the caller must check. If this node leads, it handles the
// request itself. It fails if the bucket does not list this node yet, if no leader is known, or without a response within
// [responseTimeout].
func (s *Sharing) send(ctx context.Context, q LeaderRequest) (a LeaderResponse, err error) {
	if !s.listed.Load() {
		return a, errors.New("the bucket does not list this node yet")
	}
	if o := s.leading.Load(); o != nil && o.Epoch() == q.Epoch {
		a = o.Respond(q)
		a.Limit = 0 // this node has computed it, and may have changed it since
		return a, nil
	}
	at := s.leader.Load()
	if at == nil {
		return a, &cluster.NotWriterError{}
	}
	message, err := json.Marshal(q)
	if err != nil {
		return a, err
	}
	ctx, cancel := context.WithTimeout(ctx, responseTimeout) // a later response does not count
	defer cancel()
	response, err := s.options.Request(ctx, *at, message)
	if err == nil {
		err = json.Unmarshal(response, &a)
	}
	return a, err
}

// ServeHTTP handles the reports and grant requests of the other nodes, which are POST requests with JSON. If this node is not the
// leader, it refuses them with [refusedNotLeader]. It responds to malformed ones with 400. It does not check who sends them.
func (s *Sharing) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var q LeaderRequest
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, MaxMessage)).Decode(&q); r.Method != http.MethodPost || err != nil {
		http.Error(w, "want POST with a request about rooms in JSON", http.StatusBadRequest)
		return
	}
	a := LeaderResponse{Refused: refusedNotLeader}
	if o := s.leading.Load(); o != nil {
		a = o.Respond(q)
	}
	w.Header().Set("Content-Type", "application/json")
	json.NewEncoder(w).Encode(a) //nolint:errcheck // the node asks again
}

// Run polls the bucket for the leader until ctx ends, and gets the rooms' time from it. If this node leads when Run begins, Run
// makes it the one that has the global objects of the rooms, and checks that no other node has replaced it. Of consecutive errors
// it logs the first.
func (s *Sharing) Run(ctx context.Context, rooms *Rooms) {
	if status := s.options.Node.Status(); status.Leads {
		s.leading.Store(NewLeader(status.Epoch, s.member.Clock, rooms.EffectiveRoom))
		defer s.leading.Store(nil)
	}
	failed := false
	for ctx.Err() == nil {
		err := s.poll(ctx, rooms)
		if err != nil && !failed && ctx.Err() == nil {
			s.options.Logger.Warn("couldn't read the state of the cluster's waiting rooms; trying again", "err", err)
		}
		failed = err != nil
		for next := time.Now().Add(leaderInterval); ctx.Err() == nil && time.Now().Before(next); {
			retry.Sleep(ctx, clockInterval) //nolint:errcheck // the loop sees that ctx has ended
			o := s.leading.Load()
			if _, follows := s.member.Epoch(); err == nil && (!follows || o != nil && o.NeedsList()) {
				break
			}
		}
	}
}

// poll lists this node in the bucket, reads which node leads, and requests the time from the leader if that is not known yet. On
// the leader it also confirms its epoch and updates the list of nodes. If the node is listed and cannot renew that, poll
// continues and returns the error at the end.
func (s *Sharing) poll(ctx context.Context, rooms *Rooms) error {
	ctx, cancel := context.WithTimeout(ctx, epochTimeout)
	defer cancel()
	unlisted := s.register(ctx, rooms.SharedRooms())
	if unlisted != nil && !s.listed.Load() {
		return unlisted
	}
	start := s.options.Memory.elapsed()
	epoch, url, err := s.options.Node.Leader(ctx) // after it was listed: a leader that does not know of it has an epoch that it sees
	if err != nil {
		return err
	}
	s.member.LearnEpoch(epoch)
	s.leader.Store(&url)
	if o := s.leading.Load(); o != nil {
		o.ConfirmEpoch(start, epoch)
		if err := s.updateMembers(ctx, o); err != nil {
			return err
		}
	}
	s.listed.Store(true)
	if _, follows := s.member.Epoch(); follows || epoch == 0 { // 0: no node has published yet
		return unlisted
	}
	q := s.member.NewRequest()
	a, err := s.send(ctx, q.LeaderRequest)
	if err == nil {
		_, err = s.member.AcceptResponse(q, a)
	}
	if errors.Is(err, refusedUnlisted) {
		if time.Since(s.renewed) < 2*leaderInterval { // the leader has yet to read the list
			return unlisted
		}
		s.renewed = time.Time{} // the bucket may have lost it
	}
	return err
}

// register writes this node with its rooms to the list in the bucket, unless it has written the same less than a minute ago.
func (s *Sharing) register(ctx context.Context, rooms []string) error {
	if slices.Equal(rooms, s.joined) && time.Since(s.renewed) < listInterval {
		return nil
	}
	now := time.Now()
	if err := s.options.Node.JoinRooms(ctx, cluster.RoomsOfNode{Name: s.member.Name, Rooms: rooms}); err != nil {
		return err
	}
	s.joined, s.renewed = rooms, now
	return nil
}

// updateMembers reads the bucket's list of nodes, once a minute or when the leader o needs it, and passes it to o, which responds
// only to nodes on the list. It removes nodes from the list that have been silent for two hours, also in the bucket, and logs
// that.
func (s *Sharing) updateMembers(ctx context.Context, o *Leader) error {
	if !o.NeedsList() && time.Since(s.read) < listInterval {
		return nil
	}
	all, unreadable, err := s.options.Node.AllRooms(ctx)
	if err != nil {
		return err
	}
	for key, why := range unreadable {
		if s.unreadable[key] == nil {
			s.options.Logger.Warn("the list of nodes with waiting rooms in the bucket has an object that no node has written; remove it", "object", key, "err", why)
		}
	}
	s.unreadable = unreadable
	o.SetMembers(all)
	s.read = time.Now()
	for _, name := range o.SilentNodes(silentTime) {
		o.RemoveNode(name)
		if err := s.options.Node.LeaveRooms(ctx, name); err != nil {
			return err
		}
		s.options.Logger.Info("the waiting rooms no longer wait for a node, because it has been silent for long", "node", name, "silent", silentTime)
	}
	return nil
}
