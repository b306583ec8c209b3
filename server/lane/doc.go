// Package lane answers simple HTTP/1.1 requests on a connection by itself, and hands
// the connection to net/http as soon as a request is not simple.
//
// A [Listener] stands between a listener and an http.Server. It reads requests and gives
// them to a [Handler], which sends prepared bytes. What the lane does not answer comes out
// of Listener.Accept, with the bytes that were read, and never comes back.
//
// On Linux connections wait for requests on event loops, as many as can run at a time
// (loop_linux.go), with TLS as soon as the handshake is done. What may take long does not
// keep others waiting there: whoever would wait for the client, or has called
// [Exchange.Leave] and is not done soon, stays with the connection, and another goroutine
// goes on with the loop. Go's poller hears of a connection only when a client has to be
// waited for (descriptor_linux.go). Elsewhere each connection has a goroutine.
//
// What it guarantees:
//
//   - It refuses to guess. A request is answered here only if it is a GET or HEAD of
//     HTTP/1.1 in the plainest form: no body, no field that changes what a message or a
//     connection is, no byte that two readers could take for different things. Who
//     sends anything else talks to net/http, which decides, and so the two cannot
//     disagree about where a request ends.
//   - What came before such a request is answered before it.
//   - A connection with TLS is handed over as *tls.Conn where it speaks HTTP/2, and where
//     the handshake failed.
//   - A request that is answered from prepared bytes takes no lock and no allocation,
//     beside what its handler does.
//   - Time and memory of a connection are bounded: a deadline for the handshake, the
//     head of a request, the wait for the next one and each write; one buffer of
//     4 KiB (none while it waits on a loop), and while something is being sent another of
//     17 KiB, with TLS 34 KiB more. A request that does not fit, or comes in many pieces,
//     is net/http's.
//
// It must not know what is asked for, nor how net/http answers.
package lane
