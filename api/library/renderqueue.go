package library

import (
	"net/netip"
	"slices"

	"github.com/larder-cdn/larder/internal/document"
)

const (
	// maxQueue limits the documents that wait. A document that finds no room is queued when it is requested again.
	maxQueue = 256
	// maxOfClient limits those that wait for one client.
	maxOfClient = maxQueue / 8
)

// A job is a document on its way through the queue.
type job struct {
	RenderRequest
	done    chan struct{}  // closed when it was rendered or given up
	clients []netip.Prefix // in whose lines it waits
	started bool
}

// A renderQueue has a line of jobs for each client, and takes jobs from the lines in turn. A job that several clients requested
// waits in each of their lines. It has no lock; its owner calls all methods under one.
type renderQueue struct {
	jobs   map[document.Key]*job // that wait or were started
	lines  map[netip.Prefix][]*job
	order  []netip.Prefix // that have a line, the next first
	places int            // taken in all lines
}

// add puts a document at the end of the line of a client, unless it is there or was started, and returns the document's job.
// If the queue or the line is full, it returns the job that other clients wait for, or nil if none exists.
func (q *renderQueue) add(client netip.Prefix, d RenderRequest) *job {
	j := q.jobs[d.Key]
	if j != nil && (j.started || slices.Contains(j.clients, client)) {
		return j
	}
	line := q.lines[client]
	if len(line) >= maxOfClient || q.places >= maxQueue {
		return j
	}
	if j == nil {
		j = &job{RenderRequest: d, done: make(chan struct{})}
		q.jobs[d.Key] = j
	}
	if len(line) == 0 {
		q.order = append(q.order, client)
	}
	q.lines[client] = append(line, j)
	j.clients = append(j.clients, client)
	q.places++
	return j
}

// takeNext returns the first job in the line of the client whose turn it is, marks it as started, and removes it from the
// lines of all clients that wait for it; nil if no job waits. The client goes to the end of the order of turns. The caller
// calls endJob when the job is done.
func (q *renderQueue) takeNext() *job {
	if len(q.order) == 0 {
		return nil
	}
	client := q.order[0]
	q.order = append(q.order[1:], client)
	j := q.lines[client][0]
	for _, client := range j.clients {
		q.removeFromLine(client, j)
	}
	j.clients, j.started = nil, true
	return j
}

// leave removes a job from the line of a client that no longer waits for it. If no other client waits for it, the job ends
// without being rendered. A job that was started goes on. A client that is not in the line changes nothing.
func (q *renderQueue) leave(client netip.Prefix, j *job) {
	i := slices.Index(j.clients, client)
	if i < 0 {
		return
	}
	j.clients = slices.Delete(j.clients, i, i+1)
	if q.removeFromLine(client, j); len(j.clients) == 0 {
		q.endJob(j)
	}
}

// endJob removes a job, rendered or given up, from the jobs and notifies those that wait for it. The caller holds the owner's
// lock, and calls it once for each job, which is in no line any more.
func (q *renderQueue) endJob(j *job) {
	delete(q.jobs, j.Key)
	close(j.done)
}

// removeFromLine removes a job from the line of a client, in which it must be. A client with an empty line loses its turn.
func (q *renderQueue) removeFromLine(client netip.Prefix, j *job) {
	line := q.lines[client]
	i := slices.Index(line, j)
	q.places--
	if line = slices.Delete(line, i, i+1); len(line) > 0 {
		q.lines[client] = line
		return
	}
	delete(q.lines, client)
	q.order = slices.DeleteFunc(q.order, func(c netip.Prefix) bool { return c == client })
}
