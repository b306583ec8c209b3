package h2

// The limits of the memory of a connection, besides its table of fields and the memory of its streams.
const (
	// HeldMost is how many bytes of bodies a connection holds before it waits until one of them
	// is sent. One body is always allowed.
	HeldMost = 2 << 20
	// streamWindow and connWindow are how much of requests' bodies is kept that no handler has
	// read, for each stream and for all of them.
	streamWindow, connWindow = firstWindow, 256 << 10
	// blockBytes bounds a header block in more than one frame, and continuations how many more
	// there are. The fields of a block are bounded by Options.HeaderBytes; beyond these two the
	// connection ends.
	blockBytes, continuations = 64 << 10, 256
	// controlMost is how many bytes of responses to control frames such as PING may be unsent before the server
	// stops reading.
	controlMost = 16 << 10
	// remembered is how many closed streams a connection remembers, with how they ended.
	remembered = 32
	// updatesKept is how many priorities are kept for streams that are still to come.
	updatesKept = 8
	// priorityBytes bounds what is read of a priority.
	priorityBytes = 64
	// partialKept is how large a buffer for the beginning of a frame may stay.
	partialKept = 1 << 10
)

// farewell is the payload of the PING that Announce queues behind its GOAWAY. The response to it shows that
// the client has received that GOAWAY.
const farewell = "farewell"
