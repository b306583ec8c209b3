// Package views stores what serving and browsing look up: files, versions and packages, and their states. Everything except the bot's
// retry times follows from the log and the manifests. Apply derives it, so a publication writes the same rows as a later repair.
//
// The package does not know how a release is made or served.
package views
