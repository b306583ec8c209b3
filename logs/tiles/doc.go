// Package tiles serves a signed log as https://c2sp.org/tlog-tiles has it, so that
// any client of that can read and verify it:
//
//	/log/checkpoint                     the newest signed checkpoint
//	/log/tile/{L}/{N}[.p/{W}]           hashes of the tree, 256 to a tile
//	/log/tile/entries/{N}[.p/{W}]       the entries under a tile of level 0
//
// and what goes with them:
//
//	/log/key                            the verifier key, to be pinned
//	/log/keys                           the same in JSON, and which keys have taken over
//	/log/key-list                       the list of keys that an offline root key has signed
//	/log/content/{I}/{SHA-256}          a content that entry I names: a manifest, a
//	                                    package JSON, a diff, a long reason, an erasure
//	/log/live/{package}/{version}       proves whether a release is live, see [LiveProof]
//	/log/proof/{package}/{version}/{path}.tlog-proof
//	                                    proves that a file was published, without a network
//	                                    (https://c2sp.org/tlog-proof)
//
// What it guarantees: nothing is served that the checkpoint of that moment does not
// cover, and a tile or a content never changes, so that caches may keep it: full tiles
// and contents for ever, partial tiles for an hour. Partial tiles stay there when the
// full one is. What was signed and is in the store stays served when signing is refused,
// and nothing else is. Contents are those that entries name themselves. Files are not
// among them, because of those some are served no longer.
//
// Proofs are compared with the signed tree before they are sent.
//
// It must not know what entries say beyond which contents they name and which releases
// are live, how they are signed, or what else the process serves.
package tiles
