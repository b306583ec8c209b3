// Package replication copies a signed log and what it names from a source that is not trusted: another Larder, a bucket,
// a folder or a bundle file. A source is a [Log] (checkpoint, entries), [Contents] (by hash) or both ([Source]).
//
// What it guarantees:
//
//   - A [Follower] applies only entries that a checkpoint covers which is signed with the pinned key, or with a key that it
//     handed over to, and by the required witnesses; and which continues the last checkpoint seen. That one is stored
//     outside of the store.
//   - An entry is written with all its effects in one batch, after the contents that it names. A release appears
//     completely or not at all, and a process that is killed resumes where it was.
//   - Entries are stored byte by byte. The follower serves the source's own checkpoints, once the store has everything
//     that they cover; the package signs nothing.
//   - A source that lies is refused, and what was verified before stays. If two signed checkpoints contradict each other,
//     both are stored as evidence.
//   - A release that is withdrawn at the end of what is applied is applied without its files, and never served. If a later
//     entry restores it, they are fetched then.
//   - Memory is bounded, whatever the source sends. A pass over an unchanged source costs a few requests.
//
// The package must not know how a process runs, nor how the store is served.
package replication
