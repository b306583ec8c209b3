// Package nodes makes the nodes of a cluster share their waiting rooms: each node is a data centre of each room, and the leader has the
// global objects. The package decides which messages between nodes count, and sets their clocks. Like package queue it is arithmetic:
// callers supply the time and send the messages.
//
// # What it guarantees
//
// With the guarantees of package queue, whatever happens to nodes, network and bucket, and however far apart their clocks are: no limit is
// exceeded, also while one leader succeeds another, and while there are two. Epochs, which the bucket grants in order, distinguish leaders.
//
//   - Clocks. A node's clock is that of the leader whose response it accepted last, plus its own monotonic time. A response counts for
//     [Within] after its request, so two clocks differ by no more than [Skew]. A clock never goes back: one that is ahead stops, and its
//     node accepts no responses, until the leader's clock has caught up.
//   - One leader. A node accepts a response only to its own request, less than Within ago, and from the highest epoch that it knows. A
//     leader responds only if a read of the bucket's epochs that began less than [Sure] ago showed none higher. So Sure after an epoch was
//     taken, no earlier leader grants or renews anything.
//   - Succession. A node's report to a new leader has all grants that the node may still use ([queue.Account]), because the node accepts
//     none from earlier leaders afterwards. The new leader admits no visitor until every node in the bucket's list has reported; if one
//     does not, until everything has expired that earlier leaders may have promised to it.
//   - Listing. A node is in the bucket's list before its first request, and a leader responds only to nodes that it has seen there. A node
//     leaves the list only when it was silent for longer than any promise lasts.
//   - The leader's clock continues that of the leader before, if its process has received that, and never jumps. A node's reports count
//     once it runs on that clock.
//
// A machine that sleeps (suspend, a snapshot that is resumed) must not be a node: its monotonic clock stops.
package nodes
