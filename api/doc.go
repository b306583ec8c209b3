// Package api answers everything that is not an asset: the public routes beside /ajax/libs/, and the private ones for
// whoever operates the process. Administration is in api/admin.
//
// It guarantees that a public answer has the CORS headers of the contract, that a path reaches a handler as the client
// wrote it (nothing is cleaned, nothing redirected), and that a panic is answered with a 500 that carries the reference
// under which the log has it. It must not know how assets are cached, or how a release is made.
package api
