// Package api answers everything that is not an asset: the public routes beside /ajax/libs/, and the private ones for
// whoever operates the process. Administration is in api/admin; the pages (api/site) and the downloads are mounted here.
//
// The public routes are cdnjs's API as its clients know it, and the metadata behind it; openapi.json describes them. A
// request's way is route, answer, body: public.go routes by the path as it came; libraries.go, library.go, packages.go
// and about.go each return the answer with its caching, or an error that failures.go maps to the one shape of errors;
// answer.go chooses the coding and compares entity tags.
//
// It guarantees:
//
//   - A public answer has the CORS and caching headers of the contract, and JSON is exactly application/json.
//   - A path reaches a handler as the client wrote it: nothing is cleaned, nothing redirected, and an encoded slash
//     never moves the border between two parts.
//   - What the fields of a request do not need is not read. The list of all libraries is prepared once for each change
//     of them; a request for it costs microseconds.
//   - A failure of ours, and a panic, is answered with a 500 that carries the reference under which the log has it.
//
// It must not know how assets are cached, how a release is made, or what the store looks like: it asks api/library.
package api
