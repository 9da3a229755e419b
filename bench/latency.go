package main

import "context"

// latencyJob measures one caller alone, at the leader and at a follower, beside
// the floor of the same round.
const latencyJob = "one-caller"

func (b *bench) latency(ctx context.Context) {
	f, err := openFloor(b.dir)
	if err != nil {
		b.miss(latencyJob, floorName, err)
	} else {
		defer f.close()
	}
	for range b.plan.rounds {
		if f != nil {
			values, err := f.measure(ctx, b.plan.floor)
			b.note(row{Job: latencyJob, System: floorName, Callers: 1, Values: values}, err)
		}
		for _, where := range []string{atLeader, atFollower} {
			for _, name := range b.systems {
				if where != atLeader && place(name, where) == oneServer {
					continue
				}
				b.turn(ctx, row{Job: latencyJob, System: name, Callers: 1, Where: place(name, where)},
					order{Do: "latency", Where: where, Warm: b.plan.warm(1), For: b.plan.lone})
			}
		}
	}
}

func latencyTurn(ctx context.Context, s system, o order, values map[string]float64) error {
	o.Callers = 1
	return pairsTurn(ctx, s, o, values)
}
