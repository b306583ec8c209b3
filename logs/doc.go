// Package logs stores the append-only Merkle log of every change to what Larder serves.
//
// An entry is a small JSON document. What is large (a release's manifest, a package JSON) is a content of the store that the entry names
// by its hash. The tree is hashed as in RFC 6962 by golang.org/x/mod/sumdb/tlog, so any client of transparency logs can follow it.
//
// It guarantees: an entry, the tree hashes that it completes, the size and root of the log, and the views that the caller adds to the
// same Tx are written atomically; entries are numbered from 0 without gaps; nothing is ever changed or removed.
//
// Read finds entries by package, release and kind, newest first, through an index that is written with them. The index can be rebuilt
// from the log, like the views.
//
// Every entry states the root of the map of live releases after itself ([LiveMap]). The map's nodes change in the entry's write;
// those that an Update replaces stay as long as clients may have a checkpoint from before it. Nothing is appended to a log whose stored
// map does not have the root that its last entry states.
//
// The package does not know how a release is made or served. Package views derives from the log what serving needs.
package logs
