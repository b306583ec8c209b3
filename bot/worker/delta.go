package worker

import (
	"encoding/binary"
	"errors"

	"github.com/larder-cdn/larder/kvstore/coding"
)

// JoinDelta returns the input of the task [EncodeDelta]: the length of a dictionary in four bytes, the dictionary, and the
// content. It copies both. The dictionary has less than 4 GiB, which JoinDelta does not check.
func JoinDelta(dictionary, content []byte) []byte {
	joined := make([]byte, 0, 4+len(dictionary)+len(content))
	joined = binary.BigEndian.AppendUint32(joined, uint32(len(dictionary)))
	return append(append(joined, dictionary...), content...)
}

// encodeDelta is the function of the task [EncodeDelta]. data is a dictionary and a content, joined by JoinDelta. It returns the
// content encoded as a delta against the dictionary. It returns an error if data is too short for the dictionary, or if the
// encoder fails.
func encodeDelta(data []byte) ([]byte, error) {
	if len(data) < 4 || int64(binary.BigEndian.Uint32(data)) > int64(len(data)-4) {
		return nil, errors.New("the dictionary is cut off")
	}
	n := binary.BigEndian.Uint32(data)
	return coding.EncodeDelta(data[4:4+n], data[4+n:])
}
