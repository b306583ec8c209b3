// Package verify proves what a server of files serves, without trusting the server. It trusts a verifier key that the caller has
// pinned, and what follows from that.
//
// It proves a file in these steps:
//
//   - The checkpoint is signed with the pinned key, or with one that has replaced it. If witnesses are required, they have signed it
//     too.
//   - The checkpoint's tree contains the tree of the last checkpoint that was seen, so nothing was changed or removed since.
//   - The release's entry is in that tree.
//   - The manifest has the hash that the entry states, and the file has the SHA-256, the integrity and the size that the manifest
//     states.
//   - The release is live: the map of live releases, whose root the log's last entry states, has it with that manifest.
//
// It does not prove that a checkpoint is the newest one, beyond the times of cosignatures; that all clients see the same log, unless
// witnesses are required; that others receive the same bytes as this program; or that the manifest is what upstream published, unless
// an [Upstream] says so. Only reading the complete log (see [Release.Complete]) proves that there was no earlier publication, and that
// the signer computes the map's root from the entries. Logs of a few thousand entries are always read completely. In larger ones,
// fsck, repair and monitors detect a signer that lies about the root, and this client does not.
//
// [Trust.VerifyProof] works offline. It proves that a file was published, and not that its release is still live.
//
// [Session.VerifyPage] verifies what a web page loads. The page may be hostile: requests go only to public addresses and to hosts that
// the user has named, and a log that only the page names proves nothing.
//
// A [Watcher] reports what happens in a log: releases, unexpected ones, withdrawals, changes upstream, forks, silence. Each entry that
// it reads is proven. It stores its position after it has reported the events and before the next poll, so a restart misses none and
// may repeat the last ones. Withholding of new checkpoints looks like silence.
//
// An outcome never says more than was verified. A log has forked only if two signed checkpoints prove it to anyone, as
// [signing.Evidence]. A log that is behind is stale, and one whose parts cannot be fetched is unproven.
//
// A server may be hostile. Its responses are bounded, in encoded and decoded bytes; the caller's context bounds the time.
//
// The package must not know the store, nor how its results are displayed.
package verify
