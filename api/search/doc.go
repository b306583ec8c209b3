// Package search finds libraries by what people type: a full-text index in
// memory over what is known of each library, and the order of the answers.
//
// Guarantees: every word of a query is found in each answer, so nonsense finds
// nothing; a library whose name is exactly the query is first; the work for a
// query is bounded whatever its bytes are; a search sees the documents as they
// were before or after an update, never half of one; equal documents and equal
// queries give equal answers, in whatever order the documents came.
//
// # What matches
//
// Documents and queries are cut into words in the same way: letters and digits
// without accents, in lower case, everything else parts them. "font-awesome" is
// the words font and awesome, and fontawesome as one. A word of the query matches
// a word that equals it or starts with it; in names, one that has it inside
// ("query" finds jquery). The whole query without its gaps is also compared with
// whole names, which is why "jquery ui" finds jqueryui. Where all of that finds
// few libraries and none that is called so, words may be mistyped: one letter wrong, missing, too many or
// swapped with its neighbour from four letters on, two from eight.
//
// # What comes first
//
// Each answer belongs to a tier, and a better tier always comes first, however
// popular the others are:
//
//  1. the name, letter for letter; then without regard to case
//  2. the name without punctuation (fontawesome, Font.Awesome)
//  3. the name without .js, js or .css (angular and angularjs: angular.js), also
//     where the query has more of that kind (jquery 3.7.1, bootstrap.min.css)
//  4. another name of the library
//  5. names that start with the query
//  6. names in which each word of the query is, or starts, a word
//  7. names that contain the words anywhere
//  8. names that are the query but for a typing error, and then names whose
//     words are the query's but for one
//  9. words in keywords and the repository's name
//  10. words in the description
//  11. words in the rest: file name, repository's address, people
//  12. typing errors of words that other libraries do have, and typing errors
//     outside names
//
// A library whose words match in several places is in the tier of the worst.
// Within a tier the better text (whole words before beginnings, more of the name
// covered, shorter fields) and the popularity count about alike; then the shorter
// name is first, then the alphabet decides.
//
// bleve keeps the dictionary and says which documents have a word; the order is
// made here, because tiers can't be expressed as weights of one sum.
//
// The package does not know stores, releases or HTTP, nor where popularity comes
// from.
package search
