// Package server answers requests for assets: /ajax/libs/{package}/{version}/{path}.
//
// The way of a request is lookup, representation, bytes:
//
//   - a target is what the path names (target.go);
//   - an asset is what the store knows about that file (asset.go), kept in a cache
//     (rows.go); the heads of its answers are put together when they are sent (head.go);
//   - negotiation, conditions and ranges choose what of it to send (package negotiate,
//     conditions.go, ranges.go); they know neither the store nor net/http's writer;
//   - a body is a representation's bytes in memory, shared by all who send it (bodies.go);
//   - one decision (serve.go) answers whoever asked, over net/http or over the fast lane
//     in front of it (fastlane.go, package lane), which has plain HTTP/1.1 and TLS. What
//     they send differs in nothing but the order of the fields, and tests compare them.
//
// What it guarantees:
//
//   - Bytes are sent only after their checksum was verified; where that fails the
//     answer is 503.
//   - An entity tag, a length and the bytes of one answer belong together, also while codings
//     are being replaced by smaller ones. Another node gives the same tag for the same
//     bytes.
//   - Memory is bounded: Options.CacheBytes for what is kept, Options.SendBytes for
//     what is being sent and is not (or no longer) kept. A few clients cannot hold all of
//     that for long.
//   - After Forget no withdrawn file is served.
//   - No client keeps others out by doing nothing: one that stalls is closed, and idle
//     connections make room when there are too many.
//
// What it does not: a request that cannot be read, or has too large headers (400, 417,
// 431, 501, 505), net/http answers by itself. Over HTTP/1.1 that answer is replaced by one
// in the shape of the API's errors (refusals.go), and ends the connection. HTTP/2 tells clients
// the bound on headers beforehand; who exceeds it a little gets a 431 in HTML, and who
// exceeds it by far an error of the connection. A 405 says nothing of codings, because the
// file was not looked up.
//
// How much each package is asked for is counted by package demand.
//
// It must not know where releases come from, nor how the API looks.
package server
