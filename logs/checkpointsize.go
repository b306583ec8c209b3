package logs

import (
	"errors"
	"strconv"
	"strings"
)

// MaxSize is the largest valid size of a log. Package tlog does not terminate with sizes near the largest integer.
const MaxSize = 1 << 40

// CheckpointSize returns how many entries a signed checkpoint has according to its text, without verifying anything. The
// error says that it is not a checkpoint.
func CheckpointSize(checkpoint []byte) (int64, error) {
	if lines := strings.SplitN(string(checkpoint), "\n", 3); len(lines) == 3 {
		if n, err := strconv.ParseInt(lines[1], 10, 64); err == nil && n >= 0 && n <= MaxSize {
			return n, nil
		}
	}
	return 0, errors.New("not a checkpoint")
}
