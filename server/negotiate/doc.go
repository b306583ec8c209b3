// Package negotiate decides what a request's headers come to: which content coding
// an answer has (Accept-Encoding), whether the client has it already (If-Match and
// If-None-Match), and whether a failure is told as JSON or as text (Accept).
//
// What it guarantees:
//
//   - It takes header fields as net/http has them, a string for each line, and any
//     bytes in them. What is malformed is ignored, as RFC 9110 asks; there are no
//     errors.
//   - Several lines mean the same as one line with all their members.
//   - Accept-Encoding and entity tags are read without an allocation.
//
// It must not know what is being sent: neither assets nor pages, nor how an entity
// tag is made.
package negotiate
