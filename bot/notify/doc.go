// Package notify sends HTTP requests to others at their time: scheduled requests, once or again and again, and the messages of webhooks, which
// report published releases, what happens to releases, and what happens in waiting rooms.
//
// Each request is a durable object (package kvstore/durable) whose alarm is its next delivery, so any number of them sleep without cost, and a
// restart forgets none. [Webhooks] follows the log: for each entry after a webhook was added that it subscribes to, a message becomes a
// scheduled request. So does each event of a waiting room ([Webhooks.NotifyRoom]).
//
// What it guarantees:
//
//   - A request is delivered at least once, at its time or later, until a response has 2xx. A failed one is repeated after 2 s, doubled each time
//     up to an hour, and up to a quarter longer. A single request is given up after three days; a repeating one when its next time has come,
//     which counts as missed. Replacing or deleting a request does not stop a delivery that is under way.
//   - A few requests at once go to one receiver, and one after a failure. So a receiver that is down delays no other.
//   - Every entry of the log is sent at least once, with the same message id in each attempt. Each attempt is signed for its own time
//     (https://www.standardwebhooks.com). A webhook's secret is shown once, when it is added.
//
// URLs are the operator's own word: they may have any address, loopback and private ones too, and http. Redirects are not followed and count as
// failures. Responses are read to 64 KiB and must come within 30 s. A URL may have a secret: errors and logs name its host only.
//
// In a cluster the leader has an [Outbox], which the next leader takes over ([Snapshot], [Replace]).
//
// It must not know how releases are made, nor what a waiting room is.
package notify
