// Package kvstore keeps everything Larder knows in one folder, on Pebble.
//
// Keys live in namespaces of one byte; what a value means and its format
// version belong to whoever writes it. Contents, the bytes of files, are kept
// by the SHA-256 of their identity bytes, once, in one or more codings.
//
// What it guarantees:
//
//   - A [Batch] is atomic and durable: after Commit returned nil all of it
//     survives a crash, and a crash before that leaves all of it or nothing.
//   - What [Store.PutContent] stored before a Commit is at least as durable as
//     that Commit, so a row that names a content never outlives it.
//   - Content is checked whenever it is read; damaged bytes are never returned.
//   - One process owns a folder. A second one gets [ErrLocked].
//   - A full disk refuses writes with [ErrDiskFull] and loses nothing.
//
// It must not know packages, releases or HTTP.
package kvstore
