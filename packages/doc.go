// Package packages is about what Larder serves, not how: the package JSON that
// contributors write, the catalogue those files form, which files of a release
// a package publishes, and the order of its versions.
//
// It guarantees that a [Package] returned by [Parse] or found in a [Catalogue]
// follows every rule of the package JSON contract, that every [Problem] names
// the line and column in the file and says in plain words what to change, and
// that one bad file never keeps the others from loading. The files come from
// strangers: whatever they hold, the work and the memory spent on them is
// bounded, and the paths that [Package.Select] returns stay inside the package.
//
// The rules live in schema.json, a JSON Schema (draft 2020-12) that [Schema]
// returns; what a schema cannot say (globs that do not compile, a name that is
// not the file's) is checked beside it. A test holds the Go types to the schema.
//
// It must not know HTTP, upstreams or stores.
package packages
