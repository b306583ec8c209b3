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
//     Where store and key folder are both from an old backup, witnesses know more:
//     nothing new is signed before those that the [Policy] asks for have confirmed
//     the last one.
//   - A checkpoint is on the disk before clients or witnesses see it. A crash at any
//     moment leaves the key folder with a key and with a checkpoint that is no older
//     than what was shown.
//   - Clients see a checkpoint once it has the cosignatures that the policy asks for,
//     and what they have seen is not taken away, whatever becomes of signing. No
//     witness ends signing by what it says; what it proves is stored and reported.
//
// It must not know what the entries say, except that it appends the one that
// announces a new key, nor how checkpoints are served.
package signing
