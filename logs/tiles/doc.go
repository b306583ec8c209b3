// Package tiles serves a signed log in the form of https://c2sp.org/tlog-tiles, which any client of that can read and verify:
//
//	/log/checkpoint                     the newest signed checkpoint
//	/log/tile/{L}/{N}[.p/{W}]           hashes of the tree, 256 to a tile
//	/log/tile/entries/{N}[.p/{W}]       the entries under a tile of level 0
//
// and more about it:
//
//	/log/key                            the verifier key, for clients to pin
//	/log/keys                           the same in JSON, with the changes of keys
//	/log/key-list                       the list of keys that an offline root key has signed
//	/log/content/{I}/{SHA-256}          a content that entry I names: a manifest, a
//	                                    package JSON, a diff, a long reason, an erasure
//	/log/live/{package}/{version}       proves whether a release is live, see [LiveProof]
//	/log/proof/{package}/{version}/{path}.tlog-proof
//	                                    proves that a file was published, without a network
//	                                    (https://c2sp.org/tlog-proof)
//
// It guarantees: nothing is served that the current checkpoint does not cover. A tile or a content never changes, so caches may store it:
// full tiles and contents forever, partial tiles for an hour. Partial tiles stay available when the full one is. While signing is
// refused, what was signed and is in the store is served, and nothing else. Contents are only those that entries name themselves, and
// not files of releases, because some of these are withdrawn.
//
// Proofs are compared with the signed tree before they are sent.
//
// The package must not know what entries say, except which contents they name and which releases are live, nor how they are signed, nor
// what else the process serves.
package tiles
