// Package kvstore keeps everything Larder knows in one folder, on Pebble.
//
// Keys live in namespaces of one byte; what a value means and its format
// version belong to the package that writes it. Contents, the bytes of files, are kept
// once, by the SHA-256 of their identity bytes, in one or more codings.
//
// What it guarantees:
//
//   - A [Batch] is atomic and durable: once Commit has returned nil all of it
//     survives a crash, and a crash before that leaves all of it or nothing.
//   - What [Store.PutContent] stored before a Commit is at least as durable as
//     that Commit, so no row outlives the content it names. Both go through one
//     write-ahead log, and a log is only ever cut off at its end: syncing it for
//     the later write syncs the earlier one.
//   - A reader sees a content's codings as one whole, even while they are being
//     replaced, and never gets bytes that fail their checksum: [ErrCorrupt].
//   - A content that has a sound coding can be read, and is repaired: [Store.RepairContent].
//   - A store that is damaged is not opened for writing, and none of its files are
//     deleted: [DamageError]. One that is sound and has less than it had on the disk is
//     opened, and says so: [Store.Behind].
//   - One process owns a folder. A second one gets [ErrLocked].
//   - A full disk refuses writes with [ErrDiskFull] and loses nothing; reads go
//     on. The same holds for a disk that fails, with another error.
//
// It must not know packages, releases or HTTP. Layout and tuning, and what
// they were measured against, are in docs/store.md.
package kvstore
