// Package cluster lets several nodes publish to one log, with a bucket as all that they share.
//
// A publication happens when its node has created the commit with the next number: one object,
// commit/N, that only one node can make. A commit has the entries that it adds, names the packs of
// contents that they need, and carries the epoch of the node that writes. Every node applies the
// commits in their order, through the code that publication uses.
//
// What it guarantees:
//
//   - There is one commit for each number, and each is built on the one before. So what nodes sign
//     never conflicts, whichever of them was paused, killed or cut off, and when.
//   - A publication that was acknowledged is in a commit. One that was refused never is. An
//     unconfirmed one is put again, the same bytes under the same number, until the store says whose
//     the number is; nothing else is put there meanwhile.
//   - A node that takes over lands a commit of its own before it publishes. A node that wrote before
//     cannot land any after that, and steps down. No clock decides that: time limits say only when a
//     node tries to take over.
//
// It rests on the bucket's promise that one of several creations of an object succeeds
// ([bucket.Probe]). It must not know what entries mean, how a process runs, nor how nodes are queried.
package cluster
