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
// it leaves. In a [Cluster] the global object is on the leader, in memory ([Sharing]); a [Member]
// decides which of its responses count.
//
// # Clusters
//
// Each node of a cluster is a data centre of each room that the nodes share, and the leader has the global objects ([Leader]). With the
// guarantees of package queue, whatever happens to nodes, network and bucket, and however far apart their clocks are, no limit is exceeded:
// also while one leader succeeds another, and while there are two. Epochs, which the bucket grants in order, distinguish leaders. The
// files calls.go, clock.go, leader.go, member.go and originresponses.go are arithmetic, like package queue: callers supply the time and
// send the messages.
//
//   - Clocks. A node's clock is that of the leader whose response it accepted last, plus its own monotonic time. A response counts for
//     responseTimeout after its request, so two clocks differ by no more than clockSkew. A clock never goes back: one that is ahead stops,
//     and its node accepts no responses, until the leader's clock has caught up.
//   - One leader. A node accepts a response only to its own request, less than responseTimeout ago, and from the highest epoch that it
//     knows. A leader responds only if a read of the bucket's epochs that began less than epochTimeout ago showed none higher. So
//     epochTimeout after an epoch was taken, no earlier leader grants or renews anything.
//   - Succession. A node's report to a new leader has all grants that the node may still use ([queue.Account]), because the node accepts
//     none from earlier leaders afterwards. The new leader admits no visitor until every node in the bucket's list has reported; if one
//     does not, until everything has expired that earlier leaders may have promised to it.
//   - Listing. A node is in the bucket's list before its first request, and a leader responds only to nodes that it has seen there. A node
//     leaves the list only when it was silent for longer than any promise lasts.
//   - The leader's clock continues that of the leader before, if its process has received that, and never jumps. A node's reports count
//     once it runs on that clock.
//
// A machine that sleeps (suspend, a snapshot that is resumed) must not be a node: its monotonic clock stops.
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
