// Package admin lets commands speak to the process that owns a data folder.
//
// It is a small protocol over HTTP on a Unix socket in that folder: an operation is a POST of a JSON request to
// /{name}; the answer is a stream of JSON lines, any number of {"event": …} followed by one {"result": …} or
// {"error": "…"}. A stream without such an end was cut off. Whoever ends the request cancels the operation.
//
// Access is the socket's permissions, nothing else: only the user who runs the process may connect. The package does
// not know what the operations are; the same Handler answers through [InProcess] where no process runs.
package admin
