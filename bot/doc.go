// Package bot brings releases in: it asks upstreams what is new, fetches a
// release, takes the files that the package JSON names, makes what is missing,
// compresses and hashes them, and publishes the release in one atomic write.
// Afterwards it squeezes what it published.
//
// Guarantees: a release is published whole or not at all; a published version is
// never rewritten; every version that upstream has ends in a state with a reason,
// and one that failed for a passing reason is tried again, also after a restart;
// one bad package never stops the others; memory and downloads under way are
// bounded by Options.
//
// The package does not know how files are served.
package bot
