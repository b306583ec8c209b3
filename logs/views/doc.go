// Package views holds what serving and browsing need to find quickly: which
// files, versions and packages there are and in which state. All of it but the
// bot's retry times follows from the log and the manifests, and Apply is the
// function that derives it, so that a publication writes the same rows as a
// later repair.
//
// The package does not know how a release is made, and not how it is served.
package views
