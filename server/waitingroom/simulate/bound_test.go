package simulate

import (
	"fmt"
	"testing"
	"time"

	"github.com/larder-cdn/larder/server/waitingroom/queue"
)

func TestBoundExplore(t *testing.T) {
	for _, W := range []int{30, 40, 50, 60, 75, 90, 120} {
		worst, viol, samples := 0, 0, 0
		worstSeed := uint64(0)
		worstAt := 0
		for seed := range uint64(200) {
			o := hostile(seed)
			o.Failures, o.Loss, o.Delay, o.Patience, o.Roaming = nil, 0, o.Delay/6, 0, 0
			if o.Settings.Method == queue.FIFO && seed%2 == 0 { o.Patience = 3*time.Minute }
			res, err := Run(o)
			if err != nil { t.Fatal(err) }
			s := res.Settings
			admittedMinute := 0
			for i, x := range res.Seconds {
				if i%60 == 1 || i%60 == 0 && i == 0 { admittedMinute = 0 }
				admittedMinute += x.Admitted
				unused := min(s.TotalActiveUsers-x.Active, s.NewUsersPerMinute-admittedMinute)
				if unused <= 0 || i+W >= len(res.Seconds) { continue }
				demand := true
				adm := 0
				for k := i; k <= i+W; k++ {
					demand = demand && res.Seconds[k].Waiting >= unused
					if k > i { adm += res.Seconds[k].Admitted }
				}
				if !demand { continue }
				samples++
				if adm < unused { viol++; if unused-adm > worst { worst = unused-adm; worstSeed = seed; worstAt = i } }
			}
		}
		fmt.Println(W, samples, viol, worst, worstSeed, worstAt)
	}
}
