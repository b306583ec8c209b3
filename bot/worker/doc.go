// Package worker does heavy work on strangers' bytes in child processes:
// minifying, and encoding at the best ratio.
//
// A parser that a hostile file drives into the ground takes its process with it
// (a megabyte of "!" overflows the stack of a recursive JavaScript parser, which
// Go cannot recover from). So a job that crashes, stalls or eats memory (2 GiB,
// where the system can bound it) costs that one job an error and never the bot. A
// child may also run at the lowest priority, so that squeezing leaves the processor
// to serving and publishing without a scheduler of our own.
//
// A child gets none of the parent's environment but what Go itself reads: tokens are no
// business of what works on strangers' bytes.
//
// The package knows bytes only: no packages, no store.
package worker
