// Package webhook tells others over HTTP when a release is published.
//
// A webhook is a URL, and a secret that its messages are signed with. Package webhook
// follows the log: for every entry that says that a release was published, after a
// webhook was added, each webhook that asked for its package is sent a message, as a
// scheduled request (package schedule), which keeps on trying.
//
// Guarantees: every such entry is sent at least once, whoever restarts in between, or
// given up after three days of failures; a message has the same id in each attempt.
// Each attempt is signed for its own time, as Standard Webhooks has it
// (https://www.standardwebhooks.com), so a recording of one is worth nothing soon
// after. Secrets are in the store and told once, when the webhook is added.
//
// The package does not know how releases come about.
package webhook
