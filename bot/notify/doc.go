// Package notify sends HTTP requests to other services: scheduled requests, once or repeatedly; messages of webhooks about releases and waiting
// rooms; and the requests to the purge hook, which has the cache in front purge withdrawn releases.
//
// Each request is a durable object (package kvstore/durable) whose alarm is its next delivery, so a waiting request takes no memory and a
// restart loses none. [Webhooks] follows the log: each entry that a webhook or the purge hook subscribes to becomes a scheduled request. So
// does each event of a waiting room ([Webhooks.NotifyRoom]).
//
// What it guarantees:
//
//   - A request is delivered at least once, at its time or later, until a response has 2xx. A failed one is repeated after 2 s, doubled each time
//     up to an hour, and up to a quarter longer. A single request is given up after three days; a repeating one when its next time has come,
//     which counts as missed; a purge never, unless a later withdrawal of the release replaces it. Replacing or deleting a request does not stop a delivery that is under way.
//   - A few requests at once go to one receiver, and one after a failure, so a receiver that is down delays no other.
//   - Every entry of the log is sent at least once, with the same message id in each attempt. Each attempt is signed for its own time
//     (https://www.standardwebhooks.com). A webhook's secret is shown once, when it is added.
//
// The operator sets the URLs, so loopback and private addresses and http are allowed. Redirects are not followed and count as
// failures. Responses are read to 64 KiB and must come within 30 s. A URL may have a secret: errors and logs name its host only.
//
// In a cluster the leader has an [Outbox], which the next leader takes over ([Snapshot], [Replace]).
//
// It must not know how releases are made, under which URLs they are served, or what a waiting room is.
package notify
