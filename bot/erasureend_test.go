package bot_test

import (
	"context"
	"errors"
	"testing"

	"github.com/larder-cdn/larder/bot"
)

// Files are erased when no process serves them any longer, and not before.
func TestEnd(t *testing.T) {
	c := stocked(t)
	ctx := t.Context()
	calls := 0
	inForce := func(context.Context) error {
		calls++
		if !c.stored("one") {
			t.Error("a file was erased while it may be served")
		}
		return nil
	}
	out, erasure, err := c.desk.WithdrawAndErase(ctx, "demo", "1.0.0", "by order", false, inForce)
	if err != nil || out == nil || erasure != nil || calls != 1 {
		t.Fatalf("withdrawn: %+v, %+v, %v, asked %d times", out, erasure, err, calls)
	}
	if _, _, err := c.desk.WithdrawAndErase(ctx, "demo", "1.0.0", "by order", false, inForce); !errors.Is(err, bot.ErrAlreadyWithdrawn) {
		t.Errorf("withdrawn twice: %v", err)
	}
	stuck := errors.New("stuck")
	if _, _, err := c.desk.WithdrawAndErase(ctx, "demo", "1.0.0", "by order", true, func(context.Context) error { return stuck }); !errors.Is(err, stuck) || !c.stored("one") {
		t.Errorf("erased although it may be served: %v", err)
	}
	out, erasure, err = c.desk.WithdrawAndErase(ctx, "demo", "1.0.0", "by order", true, inForce)
	if err != nil || out != nil || erasure == nil || erasure.Erased == 0 || c.stored("one") {
		t.Errorf("erased later: %+v, %+v, %v", out, erasure, err)
	}
	c.sound()
}
