// Package signing keeps the keys of a log and signs its checkpoints, as in
// https://c2sp.org/tlog-checkpoint.
//
// What it guarantees:
//
//   - Only durable entries are signed.
//   - Two signed checkpoints never contradict each other. The last one is kept
//     beside the key, outside of the data folder, and the tree must contain it
//     before anything else is signed. So a store that was restored from an old
//     backup cannot fork the log: signing is refused instead, see [RefusedError].
//     Where store and key folder are both from an old backup, witnesses know more,
//     and their word ends signing too.
//   - A checkpoint is on the disk before anybody sees it, whether clients or
//     witnesses. A crash at any moment leaves the key folder with a key and with a
//     checkpoint that is no older than what was shown.
//
// It must not know what the entries say, except that it appends the one that
// announces a new key, nor how checkpoints are served.
package signing
