package worker

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"

	"github.com/larder-cdn/larder/internal/document"
)

// This file encodes what a parent and its child send each other: fields, each a length (4 bytes, big endian) and that many bytes.
// A hostile file may have taken over the child, so the parent parses nothing more complex.

// maxField bounds a field, in bytes.
const maxField = 256 << 20

// MaxResponseSize returns how many bytes the data in the response of a child may have for a task whose input has size bytes. The
// text of an error, at most headSize bytes, does not count. Results of minifiers and encoders may exceed their input, but not by
// much.
func MaxResponseSize(t Task, size int) int {
	switch t {
	case Render:
		return document.MaxMarkup + headSize
	case FindFormat:
		return headSize
	case FindImports: // escaped in JSON
		return min(maxField, 8*size+headSize)
	case BuildModules: // files in base64, and names
		return min(MaxModulesOutput/3*4+8<<20, 4*size+1<<20)
	default:
		return min(maxField, 4*size+1<<20)
	}
}

// A fieldSizeError is the error of a field that exceeds its limit.
type fieldSizeError struct {
	size  int64
	limit int
}

// Error states the announced size of the field and the limit that it exceeds.
func (e *fieldSizeError) Error() string {
	return fmt.Sprintf("a field of %d bytes, over the limit of %d", e.size, e.limit)
}

// writeFields writes fields of the protocol, each as its length in four bytes and its bytes. If one has over maxField bytes, it stops before
// that and returns an error.
func writeFields(w io.Writer, fields ...[]byte) error {
	for _, data := range fields {
		if len(data) > maxField {
			return fmt.Errorf("%d bytes, over the limit of %d", len(data), maxField)
		}
		if _, err := w.Write(binary.BigEndian.AppendUint32(nil, uint32(len(data)))); err != nil {
			return err
		}
		if _, err := w.Write(data); err != nil {
			return err
		}
	}
	return nil
}

// readFields reads a field for each limit of its bytes, see readField.
func readFields(r io.Reader, limits ...int) ([][]byte, error) {
	fields := make([][]byte, len(limits))
	for i, limit := range limits {
		var err error
		if fields[i], err = readField(r, limit); err != nil {
			return nil, err
		}
	}
	return fields, nil
}

// readField reads a field that writeFields wrote, and returns its bytes. If it has over limit bytes, the error is a
// *fieldSizeError, and only the length has been read. If r ends before the field, the error is io.EOF; if in the middle,
// io.ErrUnexpectedEOF. For fields over 1 MiB it allocates memory as the bytes arrive, because the announced length may be a lie.
func readField(r io.Reader, limit int) ([]byte, error) {
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return nil, err
	}
	n := int64(binary.BigEndian.Uint32(head[:]))
	if n > int64(limit) {
		return nil, &fieldSizeError{n, limit}
	}
	var b bytes.Buffer
	if n <= 1<<20 {
		b.Grow(int(n))
	}
	if copied, err := io.CopyN(&b, r, n); err != nil {
		if err == io.EOF && copied < n {
			err = io.ErrUnexpectedEOF
		}
		return nil, err
	}
	return b.Bytes(), nil
}

// write sends the greeting of a child to its parent: in two fields the address space that the child has mapped without using it,
// and why it runs no jobs ("" if it does). The caller flushes w.
func (h hello) write(w io.Writer) error {
	var numbers [16]byte
	binary.BigEndian.PutUint64(numbers[:8], uint64(h.Mapped.All))
	binary.BigEndian.PutUint64(numbers[8:], uint64(h.Mapped.Data))
	return writeFields(w, numbers[:], []byte(h.Failure))
}

// readHello reads, in the parent, the greeting that a child process sent with hello.write when it started: how much address
// space it has mapped without using it (h.Mapped; zero if that field has fewer than 16 bytes), and why it must not run jobs
// (h.Failure; "" if it may). A failure of the child is not in err; the caller checks h.Failure.
func readHello(r io.Reader) (h hello, err error) {
	fields, err := readFields(r, 16, headSize)
	if err != nil {
		return h, err
	}
	if numbers := fields[0]; len(numbers) == 16 {
		h.Mapped = addressUse{int64(binary.BigEndian.Uint64(numbers[:8])), int64(binary.BigEndian.Uint64(numbers[8:]))}
	}
	h.Failure = string(fields[1])
	return h, nil
}

// write sends a request from the parent to a child: the task, the limit of memory in bytes, and the data, a field each.
func (q request) write(w io.Writer) error {
	return writeFields(w, []byte(q.Task), binary.BigEndian.AppendUint64(nil, uint64(q.Memory)), q.Data)
}

// readRequest reads, in the child, a request that the parent sent with request.write. It trusts the parent, and panics if the
// field with the limit of memory is too short. The error is io.EOF if the input ends before a field, as between two
// requests.
func readRequest(r io.Reader) (q request, err error) {
	fields, err := readFields(r, maxField, maxField, maxField)
	if err != nil {
		return q, err
	}
	return request{Task: Task(fields[0]), Memory: int64(binary.BigEndian.Uint64(fields[1])), Data: fields[2]}, nil
}

// write sends the response of a child to its parent: the text of the error ("" for none) and the data.
func (a response) write(w io.Writer) error {
	return writeFields(w, []byte(a.Error), a.Data)
}

// readResponse reads, in the parent, the response that a child sent with response.write. If the data has over limit bytes, or the
// text of the task's error over headSize, the error is a *fieldSizeError. An error of the task is in a.Error, not in err.
func readResponse(r io.Reader, limit int) (a response, err error) {
	fields, err := readFields(r, headSize, limit)
	if err != nil {
		return a, err
	}
	return response{Error: string(fields[0]), Data: fields[1]}, nil
}
