// Package review looks at the pull requests of a catalogue that lives on GitHub, and says beside the lines
// what is wrong: what `larder lint` says, what the upstream has, which files the bot would publish, and in
// what that differs from what is published.
//
// What it guarantees: nothing of a submission is checked out or run; package JSON files are read through
// GitHub's API, under limits, and what they name is fetched under the rules of package fetch. Each look at a
// commit is one check run of that commit, and what belongs to an older commit or an older look never takes
// the place of the newer. What a stranger wrote cannot become Markdown or more than text. GitHub's rate
// limits are waited for.
//
// It keeps nothing. What is to be done is what GitHub says: at the start and each hour it asks for the
// open pull requests, and those whose newest commit has no finished check are looked at. So neither a
// restart nor a lost delivery loses work.
//
// The package must not know what a store is, who serves files, or how a delivery came; whoever hands one to
// [Reviewer.Take] has verified its signature.
package review
