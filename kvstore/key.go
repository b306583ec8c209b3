package kvstore

import "strings"

// Namespace is the first byte of every key. It says who owns a row.
type Namespace byte

// The namespaces. They are part of the format on disk: a letter is never
// given a second meaning.
const (
	Blobs      Namespace = 'b' // hash, coding: the coded bytes; written by this package only
	Contents   Namespace = 'c' // hash: which codings there are; written by this package only
	Durable    Namespace = 'd' // durable objects: class, name, and the times of their alarms
	Files      Namespace = 'f' // package, version, path
	LogHashes  Namespace = 'h' // Merkle tree hashes by index
	LogIndex   Namespace = 'i' // where the log's entries about something are
	LogState   Namespace = 'k' // size and checkpoint of the log
	LogEntries Namespace = 'l' // log entries by index
	Meta       Namespace = 'm' // the store's own format version, and settings
	Packages   Namespace = 'p' // package
	Queue      Namespace = 'q' // work that survives a restart
	SRIs       Namespace = 's' // package, version, path
	States     Namespace = 't' // package, version: what was tried, how it ended
	Upstreams  Namespace = 'u' // what upstreams last answered
	Versions   Namespace = 'v' // package, version
)

// Key joins parts with zero bytes, so that a key with more parts sorts right
// after its parent. No part may hold a zero byte.
func Key(parts ...string) []byte {
	return []byte(strings.Join(parts, "\x00"))
}

// Prefix is the prefix of every key that has parts and at least one more:
// Prefix("jquery") covers Key("jquery", "3.7.1") and not Key("jquery-ui", "1").
func Prefix(parts ...string) []byte {
	return append(Key(parts...), 0)
}

// physical is the key as Pebble sees it.
func (ns Namespace) physical(key []byte) []byte {
	k := make([]byte, 0, 1+len(key))
	k = append(k, byte(ns))
	return append(k, key...)
}

// successor returns the smallest key greater than every key that begins with
// prefix, or nil where there is none.
func successor(prefix []byte) []byte {
	for i := len(prefix) - 1; i >= 0; i-- {
		if prefix[i] != 0xff {
			next := append([]byte(nil), prefix[:i+1]...)
			next[i]++
			return next
		}
	}
	return nil
}
