package cluster

import "fmt"

// A RecordSealer encrypts and authenticates the versions of a configuration record in the bucket, with their numbers.
type RecordSealer struct {
	Key    *Key
	Record string // its name
}

// additionalData returns the bytes that are authenticated, but not stored, with a version of the record: its name and the version's number.
func (s RecordSealer) additionalData(number int64) []byte {
	return fmt.Appendf(nil, "larder record %s %d", s.Record, number)
}

// Seal returns a version of the record, encrypted with the cluster's key and bound to its number. The error is always nil.
func (s RecordSealer) Seal(number int64, data []byte) ([]byte, error) {
	return s.Key.aead.Seal(nil, nil, data, s.additionalData(number)), nil
}

// Open returns the decrypted data of a version of the record. It returns an error if the version was changed, or encrypted with another key or for
// another number.
func (s RecordSealer) Open(number int64, stored []byte) ([]byte, error) {
	return s.Key.open(stored, s.additionalData(number))
}
