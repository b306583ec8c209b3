// Package server answers requests for assets: /ajax/libs/{package}/{version}/{path}.
//
// The way of a request is lookup, representation, bytes:
//
//   - a target is what the path names (target.go);
//   - an asset is what the store knows about that file, with the headers of each of its
//     representations prepared once (asset.go), kept in a cache (rows.go);
//   - negotiation, conditions and ranges choose what of it to send (negotiate.go,
//     conditions.go, ranges.go); they know neither the store nor net/http's writer;
//   - a body is a representation's bytes in memory, shared by all who send it (bodies.go).
//
// What it guarantees:
//
//   - Bytes are sent only after their checksum was verified; where that fails the
//     answer is 503.
//   - An entity tag, a length and the bytes of one answer belong together, also while codings
//     are being replaced by smaller ones. Another node gives the same tag for the same
//     bytes.
//   - Memory is bounded: Options.CacheBytes for what is kept, Options.SendBytes for
//     what is being sent and is not (or no longer) kept.
//   - After Forget no withdrawn file is served.
//
// It must not know where releases come from, nor how the API looks.
package server
