// Package follow has a store follow the signed log of another Larder, wherever that lies: behind
// its public address, or in a bucket. It is a [Source]; nothing that it says is trusted.
//
// What it guarantees:
//
//   - Nothing is taken over that a checkpoint does not cover which is signed with the pinned
//     key, or one that it handed over to, and by the witnesses that are asked for; and which
//     continues the last checkpoint that was seen. That is kept outside of the store.
//   - An entry comes in one write with all that it causes, after the contents that it names, so
//     a release appears at once or not at all, and a process that is killed goes on where it was.
//   - Entries are taken over byte by byte. What is served of the log are the source's own
//     checkpoints, of which the store has everything; the package signs nothing.
//   - A source that lies is refused. What was verified before stays. Where two signed
//     checkpoints contradict each other, both are kept as evidence.
//   - A release that is withdrawn by the time it is come to is taken over without its files,
//     and never served; if it is restored, they are fetched then.
//   - Memory is bounded, whatever the source answers.
//
// It must not know how a process runs, nor how what it holds is served.
package follow
