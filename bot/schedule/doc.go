// Package schedule sends HTTP requests at their time: once, or again and again.
//
// Each request is a durable object (package kvstore/durable) whose alarm is its next
// delivery, so any number of them sleep for nothing, and a restart forgets none.
//
// Guarantees: each delivery is made at least once, at its time or later, until it is
// answered with 2xx; what fails is tried again after 2 s, twice as long each time up to an
// hour, and up to a quarter longer. A single request is given up after three days; one that
// repeats when its next time has come, and is counted as missed. Posting to an id
// replaces the request, deleting it takes it off the schedule: what is under way then
// may still arrive.
//
// A few requests at once go to one receiver, and a single one where the last has failed;
// those that are due besides come back later, each at a time of its own. So one that is
// dead, and has much to be told, delays nobody else.
//
// The URLs are the operator's own word, as those of the purge hook are: they may have any address,
// loopback and private ones too, and http. To nowhere else is anything sent, because
// redirects are not followed; they count as failures. Answers are read to 64 KiB and
// have to come within 30 s. A URL may hold a secret: errors and logs name its host.
//
// It is in bot, beside fetch, because it talks to others, and not in kvstore, which
// knows no HTTP. It does not know what is sent, or why.
package schedule
