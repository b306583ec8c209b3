package h2

import "encoding/binary"

// Types of frames (RFC 9113 §6, RFC 9218 §7.1).
const (
	data           = 0x0
	headers        = 0x1
	priorityFrame  = 0x2
	rstStream      = 0x3
	settings       = 0x4
	pushPromise    = 0x5
	ping           = 0x6
	goAway         = 0x7
	windowUpdate   = 0x8
	continuation   = 0x9
	priorityUpdate = 0x10
)

// Flags of frames.
const (
	endStream   = 0x1
	ack         = 0x1
	endHeaders  = 0x4
	padded      = 0x8
	hasPriority = 0x20
)

// Settings.
const (
	enablePush        = 0x2
	maxStreams        = 0x3
	initialWindow     = 0x4
	maxFrameSize      = 0x5
	maxHeaderListSize = 0x6
	enableConnect     = 0x8
	noPriorities      = 0x9
)

// A Code is an error code (RFC 9113 §7).
type Code uint32

// The error codes that this package sends, with the names of the RFC.
const (
	NoError            Code = 0x0
	ProtocolError      Code = 0x1
	InternalError      Code = 0x2
	FlowControlError   Code = 0x3
	StreamClosed       Code = 0x5
	FrameSizeError     Code = 0x6
	RefusedStream      Code = 0x7
	Cancel             Code = 0x8
	CompressionError   Code = 0x9
	EnhanceYourCalm    Code = 0xb
	InadequateSecurity Code = 0xc
)

const (
	// Preface is the first bytes of a client (RFC 9113 §3.4).
	Preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

	frameHead    = 9
	largestFrame = 16 << 10 // that this takes, and sends
	mostWindow   = 1<<31 - 1
	firstWindow  = 1<<16 - 1 // where nothing else was said
	mostID       = 1<<31 - 1
)

// appendFrameHead appends the head of a frame with a payload of length bytes to b. kind is the frame's type, and id its stream, 0
// for the connection.
func appendFrameHead(b []byte, length int, kind, flags byte, id uint32) []byte {
	return append(b, byte(length>>16), byte(length>>8), byte(length), kind, flags, byte(id>>24), byte(id>>16), byte(id>>8), byte(id))
}

// appendFrame appends a frame without flags whose payload is words, in network byte order. kind is the frame's type, and id its
// stream, 0 for the connection.
func appendFrame(b []byte, kind byte, id uint32, words ...uint32) []byte {
	b = appendFrameHead(b, 4*len(words), kind, 0, id)
	for _, w := range words {
		b = binary.BigEndian.AppendUint32(b, w)
	}
	return b
}

// appendSetting appends a setting, its identifier and value, to b, the payload of a SETTINGS frame.
func appendSetting(b []byte, name uint16, value uint32) []byte {
	return binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint16(b, name), value)
}
