package cluster

import "fmt"

// A RecordSealer encrypts and authenticates the versions of a configuration record in the bucket, with their numbers.
type RecordSealer struct {
	Key    *SideKey
	Record string // its name
}

func (s RecordSealer) data(number int64) []byte {
	return fmt.Appendf(nil, "larder record %s %d", s.Record, number)
}

// Seal returns what the bucket stores.
func (s RecordSealer) Seal(number int64, data []byte) ([]byte, error) {
	return s.Key.aead.Seal(nil, nil, data, s.data(number)), nil
}

// Open returns what was sealed, or an error if it was changed or sealed with another key.
func (s RecordSealer) Open(number int64, stored []byte) ([]byte, error) {
	data, err := s.Key.aead.Open(nil, nil, stored, s.data(number))
	if err != nil {
		return nil, fmt.Errorf("it was not written with the key in this node's %s, or was changed; bring the file of the node that wrote it: %w", sideKeyFile, err)
	}
	return data, nil
}
