// Package nodes has the nodes of a cluster share their waiting rooms: each node is a data centre of
// each room, and the global objects are where the writer is, the owner. It decides which messages between
// them count, and by which clock they all go. Like package queue it is arithmetic: it gets the
// time, and callers carry the messages.
//
// # What it guarantees
//
// With the guarantees of package queue, whatever happens to nodes, network and bucket, and however far apart
// their clocks are: no limit is exceeded, also while one owner follows another, and while there are two.
// Owners are distinguished by epochs, which the bucket hands out in order.
//
//   - Clocks. A node's clock is that of the owner whose answer it took last, plus its own monotonic time. An
//     answer counts for [Within] after its question, so two clocks differ by no more than [Skew]. A clock never
//     goes back: one that is ahead stands still, and its node takes no responses, until the owner's has caught up.
//   - One owner. A node takes a response only to its own question, less than Within ago, and from the highest epoch
//     that it knows. An owner answers only if a read of the bucket's epochs that began less than [Sure] ago showed none
//     higher. So Sure after an epoch was taken, no owner before it gives or renews anything.
//   - Succession. What a node tells a new owner has all grants that it may still use ([queue.Account]),
//     because it takes none of the owner before afterwards. The new owner lets no visitor in until every
//     node that the bucket lists has reported that; or, where one does not, until everything is over that the owner before
//     may have promised to it.
//   - Listing. A node is in the bucket's list before its first question, and an owner answers only nodes that it has
//     seen there. It leaves the list only when it was silent for longer than any promise lasts.
//   - The owner's clock goes on from that of the owner before, if its process has heard that, and never jumps. What a node
//     tells counts once it runs on that clock.
//
// A machine that sleeps (suspend, a snapshot that is resumed) must not be a node: its monotonic clock stands still.
package nodes
