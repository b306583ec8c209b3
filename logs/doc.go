// Package logs keeps the append-only Merkle log of everything that happened to
// what Larder serves.
//
// An entry is a small JSON document; whatever is large (a release's manifest, a
// package's JSON) is a content of the store that the entry names by hash. The
// tree is hashed as in RFC 6962 by golang.org/x/mod/sumdb/tlog, so any client
// of transparency logs can follow it.
//
// Guarantees: an entry, the tree hashes that it completes, the checkpoint state
// and whatever views the caller adds to the same Tx become durable in one atomic
// write or not at all; entries are numbered from 0 without gaps; nothing is ever
// changed or removed.
//
// Read finds entries by package, release and kind, newest first, through an index
// that is written with them; it can be made again from the log, like the views.
//
// Every entry carries the root of the map of live releases after itself (package livemap).
// The map's nodes change in the entry's write; those that an Update replaces stay for as
// long as clients may hold a checkpoint from before it. Nothing is appended to a log whose
// stored map does not have the root that its last entry says.
//
// The package does not know how a release is made or served. Package views
// derives from the log what serving needs.
package logs
