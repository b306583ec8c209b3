// Package verify proves from outside what a server of files serves. It takes the
// server's word for nothing: it trusts a verifier key that somebody pinned, and
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
//
// What is not proven: that a checkpoint is the newest one, beyond what the witnesses'
// times say; that everybody is shown the same log, unless witnesses are required;
// that others are sent the same bytes as this program; that the manifest is what
// upstream published. And unless the whole log was read, see [Release.Complete],
// that the release was not withdrawn, or published a second time, in an entry that
// the server keeps back.
//
// The package must not know what a store is, nor how its results are shown.
package verify
