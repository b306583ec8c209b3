// Package waitingroom limits how many users a handler has at once.
//
// It is middleware: a request that no room covers goes on as it is; a request that a room
// covers goes on if its user is in, or may come in now, and is otherwise answered with a
// page that refreshes itself. A user is a ticket, kept in a cookie. Package queue decides
// which users come in; this package hosts its machines in durable objects, one for each room.
//
// # The way of an admission
//
//   - Rooms.serve finds the room, the settings in force, and the ticket. A session passes here.
//   - Rooms.decide requests the decision of the room's data centre, and lets the request pass or sends the waiting page.
//   - centre.decideVisit has the turn of the room's durable object. It requests grants for the data centre if they are used up.
//   - queue.DataCentre.Visit admits the ticket, has it wait, or says [queue.Draw].
//
// On a single node a drawing data centre calls the global object beside it: both are in one
// durable object and share its turn, and a grant is on the disk before a response that relies on
// it leaves. In a [Cluster] the global object is on the leader, in memory ([Sharing]); package nodes decides
// which of its responses count.
//
// # What is guaranteed
//
//   - A user with a session passes without a lock: the ticket is opened, its times are
//     compared, and its id is looked up among the revoked ids.
//   - No cookie, failing data centre or lost state leads to an error: a user who cannot be
//     admitted waits.
//   - No answer that hands out a ticket is stored, and no shared cache stores a response about
//     which a room decided. What the origin says to browsers holds for all others.
//
// A [Record] (record.go) has the settings of all rooms with their versions; it does not know how nodes reach each other.
//
// The built-in page (page.go) needs nothing from another address, and no script but one of its own that puts times into the reader's
// zone, without which they are in UTC. It speaks the reader's language, of those in languages.yaml. An operator's own template is
// Mustache with the names of the JSON; it reads no file, and the size of its output is bounded.
//
// The package must not know what it protects, nor how pages of a dashboard look.
package waitingroom
