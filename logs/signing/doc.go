// Package signing stores the keys of a log and signs its checkpoints, as in https://c2sp.org/tlog-checkpoint.
//
// It guarantees:
//
//   - Only durable entries are signed.
//   - Two signed checkpoints never contradict each other. The last one is stored beside the key, outside of the data folder, and the
//     tree must contain it before anything else is signed. So a store that was restored from an old backup cannot fork the log: signing
//     is refused, see [RefusedError]. If store and key folder are both from an old backup, the witnesses know more: nothing new is
//     signed before those that the [Policy] requires have confirmed the last checkpoint.
//   - A checkpoint is on the disk before clients or witnesses see it. A crash at any moment leaves a key folder with a key and with a
//     checkpoint that is not older than the published one.
//   - Clients see a checkpoint once it has the cosignatures that the policy requires. It stays published, even if signing fails. A
//     witness's claim alone never ends signing; what a witness proves is stored and reported.
//
// The package must not know what the entries say, except that it appends the one that announces a new key, nor how checkpoints are
// served.
package signing
