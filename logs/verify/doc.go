// Package verify proves from outside what a server of files serves. It takes the
// server's word for nothing: it trusts a verifier key that the caller has pinned, and
// what follows from that.
//
// What is proven of a file, step by step:
//
//   - The checkpoint is signed with the pinned key, or with a key that the pinned one
//     handed over to; where witnesses are required, they have signed it too.
//   - The checkpoint's tree contains the tree of the last checkpoint that was seen, so
//     nothing was changed or removed since.
//   - The release's entry is in that tree.
//   - The manifest has the hash that is in the entry, and the file the SHA-256, the
//     integrity and the size that are in the manifest.
//   - The release is live: the map of live releases, whose root is in the log's last entry,
//     has it with that manifest.
//
// What is not proven: that a checkpoint is the newest one, beyond what the witnesses'
// times say; that all clients are shown the same log, unless witnesses are required;
// that others are sent the same bytes as this program; that the manifest is what
// upstream published, unless an [Upstream] says so. Unless the whole log was read (see [Release.Complete]), nor are that
// there was no earlier publication, and that the signer computes the map's root from the
// entries: a signer that lies about it is caught by what replays the log, such as fsck,
// repair and monitors, and not by this client. Logs of a few thousand entries are read
// whole, which catches it too.
//
// [Trust.Proof] works without a server. It proves that a file was published, and not that
// it still is.
//
// [Session.Page] verifies what a web page loads, which may be a stranger's: it asks public
// addresses and what the user has named, and takes no log's word that only the page names.
//
// A [Watcher] reports what happens in a log: releases, unexpected ones, withdrawals, changes upstream, forks, silence. Each entry that
// it reads is proven. It stores its position after it has reported the events and before the next check, so a restart misses none and
// may repeat the last ones. Withholding of new checkpoints looks like silence.
//
// An outcome never says more than was found out. A log has forked only where two signed
// checkpoints prove it to anyone, as [signing.Evidence]; one that is behind is stale, and
// one of which something could not be had is unproven.
//
// A server may be hostile. What is held of its answers is bounded, in bytes and in what
// they decode to; the caller's context bounds the time.
//
// The package must not know what a store is, nor how its results are shown.
package verify
