// Package coding holds the content codings in which a file is stored: their
// names, their encoders and their decoders. It knows bytes only, neither files
// nor HTTP.
package coding
