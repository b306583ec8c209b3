// Package waitingroom stands in front of what must not have too many users at once.
//
// It is middleware: a request that no room covers goes on as it is; one that a room
// covers goes on if its user is in, or may come in now, and is answered with a page that
// refreshes itself otherwise. A user is whoever brings a ticket (package ticket); who may
// come in is decided by package queue, of which this package hosts the machines: for each
// room a data centre object, which decides, and a global object, which hands it grants.
// Both are durable objects, and what they say to each other goes through a [Transport].
//
// What is guaranteed:
//
//   - A user with a session passes without a lock: the ticket is opened, its times are
//     compared, and its id is looked up among those revoked.
//   - Nobody is answered with an error because of a cookie, of a failing data centre, or
//     of lost state: whoever cannot be let in waits.
//   - Every answer under a room is private and not stored, since it may hand out a ticket.
//
// The package must not know what it protects, nor how pages of a dashboard look.
package waitingroom
