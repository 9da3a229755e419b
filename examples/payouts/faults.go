package main

import (
	"context"
	"time"

	"github.com/quorumlock/quorumlock/examples/internal/crew"
)

// fewInvoices is below what number the holder to be frozen is caught before the
// others begin, since they could be done first.
const fewInvoices = 50

// freezeHolder freezes a worker in the middle of settling an invoice for longer
// than its lease, sees another settle that invoice, and wakes it.
func (d *director) freezeHolder(ctx context.Context) error {
	leader, err := d.leader(ctx)
	if err != nil {
		return err
	}
	// Not the leader: losing that one is the next fault.
	var others []*crew.Process
	for id := uint64(1); id <= workers; id++ {
		if id != leader {
			others = append(others, d.crew[id])
		}
	}
	victim, heir, witness := others[0], others[1], others[2]

	caught, err := d.catchHolder(ctx, victim)
	if err != nil {
		return err
	}
	if err := victim.Freeze(); err != nil {
		return err
	}
	frozen := time.Now()
	inv := d.find(caught.Invoice)
	d.story.tell("FREEZE worker %d (pid %d, SIGSTOP). It holds the lock %q with token %s,", victim.ID, victim.Pid(), lockName(inv.Number), caught.Token)
	d.story.more("has seen that the invoice is unpaid, and was about to write %s to %s", inv.Amount, inv.Supplier)

	if err := d.inherit(ctx, inv, heir, witness, frozen); err != nil {
		return err
	}
	// A lease runs from the holder's last renewal, which was before the freeze, so
	// it ends sooner than a lease's length from there. Sleep that length anyway.
	if err := d.pass(ctx, time.Until(frozen.Add(d.lease+500*time.Millisecond))); err != nil {
		return err
	}
	return d.wake(ctx, victim, inv, time.Since(frozen))
}

// catchHolder returns when the victim has stopped just before it writes a
// payment, and the others are at work.
func (d *director) catchHolder(ctx context.Context, victim *crew.Process) (report, error) {
	d.story.tell("the workers begin to settle %s, each invoice under a lock of its own", countInvoices(len(d.invoices)))
	few := len(d.invoices) < fewInvoices
	if few {
		if err := victim.Tell(order{Do: orderPause}); err != nil {
			return report{}, err
		}
	}
	if err := victim.Tell(order{Do: orderStart}); err != nil {
		return report{}, err
	}
	var caught report
	if few {
		var err error
		if caught, err = d.await(ctx, reportPausing, from(victim.ID)); err != nil {
			return report{}, err
		}
	}
	for _, p := range d.crew {
		if p == victim {
			continue
		}
		if err := p.Tell(order{Do: orderStart}); err != nil {
			return report{}, err
		}
	}
	if err := d.pass(ctx, 1500*time.Millisecond); err != nil || few {
		return caught, err
	}
	if err := victim.Tell(order{Do: orderPause}); err != nil {
		return report{}, err
	}
	return d.await(ctx, reportPausing, from(victim.ID))
}

// inherit has the heir stand in line for the frozen worker's lock until the
// lease ends.
func (d *director) inherit(ctx context.Context, inv invoice, heir, witness *crew.Process, frozen time.Time) error {
	if err := heir.Tell(order{Do: orderSettle, Invoice: inv.Number}); err != nil {
		return err
	}
	d.story.tell("worker %d asks for the same lock, and stands in line", heir.ID)
	if err := d.pass(ctx, time.Second); err != nil {
		return err
	}
	if err := witness.Tell(order{Do: orderDescribe, Invoice: inv.Number}); err != nil {
		return err
	}
	seen, err := d.await(ctx, reportSeen, from(witness.ID))
	if err != nil {
		return err
	}
	d.story.tell("worker %d asks the cluster about that lock: %s", witness.ID, seen.Text)

	granted, err := d.await(ctx, reportGranted, from(heir.ID))
	if err != nil {
		return err
	}
	d.faults.freezeToGrant = time.Since(frozen)
	d.story.tell("the frozen worker's lease has ended, %s after the freeze: worker %d is granted the lock,", seconds(d.faults.freezeToGrant), heir.ID)
	d.story.more("with token %s", granted.Token)
	_, err = d.await(ctx, reportPaid, func(r report) bool { return r.Invoice == inv.Number })
	if err != nil {
		return err
	}
	d.story.tell("worker %d has paid %s to %s", heir.ID, inv.Amount, inv.Supplier)
	return nil
}

// wake lets the victim go on with what it was about to do.
func (d *director) wake(ctx context.Context, victim *crew.Process, inv invoice, slept time.Duration) error {
	if err := victim.Tell(order{Do: orderGoOn}); err != nil {
		return err
	}
	woken := time.Now()
	if err := victim.Thaw(); err != nil {
		return err
	}
	d.story.tell("WAKE worker %d (SIGCONT) after %s. It goes straight on to write its payment", victim.ID, seconds(slept))

	belief, err := d.await(ctx, reportBelief, from(victim.ID))
	if err != nil {
		return err
	}
	if r, ok := d.take(reportRefused, victim.ID); ok {
		d.story.tell("the ledger REFUSED the write: its token %s is older than %s, which was admitted since", r.Token, r.Newest)
	} else if r, ok := d.take(reportPaid, victim.ID); ok && r.Invoice == inv.Number {
		d.story.tell("the ledger TOOK the write with the old token %s: %q is paid twice", r.Token, inv.Number)
	}
	d.story.tell("asked now, worker %d's own library says of the lock:", victim.ID)
	d.story.more("%s", belief.Text)
	if belief.Cause == belief.Text {
		d.story.more("and the lock's context has ended, with the same words as its cause")
	} else {
		d.story.more("and of its context: %s", belief.Cause)
	}

	if err := victim.Tell(order{Do: orderProbe}); err != nil {
		return err
	}
	if _, err := d.await(ctx, reportProbed, from(victim.ID)); err != nil {
		return err
	}
	d.faults.wakeToWork = time.Since(woken)
	d.story.tell("worker %d works again: a lock is granted to it %s after it woke", victim.ID, seconds(d.faults.wakeToWork))
	return nil
}

// take returns the worker's last report of that kind that nobody has awaited.
func (d *director) take(what reportKind, id uint64) (report, bool) {
	for i := len(d.backlog) - 1; i >= 0; i-- {
		if r := d.backlog[i]; r.What == what && r.Worker == id {
			return r, true
		}
	}
	return report{}, false
}

// killLeader kills the process that leads the cluster, and starts it again on the
// same directory.
func (d *director) killLeader(ctx context.Context) error {
	if err := d.pass(ctx, time.Second); err != nil {
		return err
	}
	leader, err := d.leader(ctx)
	if err != nil {
		return err
	}
	victim := d.crew[leader]
	d.forget(reportProbed)
	killed := time.Now()
	victim.Kill()
	d.story.tell("KILL worker %d (pid %d, SIGKILL), which leads the cluster", victim.ID, victim.Pid())
	if _, err := d.await(ctx, reportExited, from(victim.ID)); err != nil {
		return err
	}
	for _, p := range d.crew {
		if p == victim {
			continue
		}
		if err := p.Tell(order{Do: orderProbe}); err != nil {
			return err
		}
	}
	first, err := d.await(ctx, reportProbed, func(r report) bool { return r.Worker != victim.ID })
	if err != nil {
		return err
	}
	d.faults.killToGrant = time.Since(killed)
	d.story.tell("the others have a new leader: the first lock asked for since is granted to worker %d,", first.Worker)
	d.story.more("with token %s, %s after the kill", first.Token, seconds(d.faults.killToGrant))
	return d.restart(ctx, victim)
}

func (d *director) restart(ctx context.Context, dead *crew.Process) error {
	started := time.Now()
	if err := d.startWorker(dead.ID, dead.Life+1); err != nil {
		return err
	}
	p := d.crew[dead.ID]
	d.story.tell("RESTART worker %d on the same directory (now pid %d)", p.ID, p.Pid())
	for _, do := range []orderKind{orderStart, orderProbe} {
		if err := p.Tell(order{Do: do}); err != nil {
			return err
		}
	}
	again := func(r report) bool { return r.Worker == p.ID && r.Life == p.Life }
	if _, err := d.await(ctx, reportProbed, again); err != nil {
		return err
	}
	d.faults.startToWork = time.Since(started)
	d.story.tell("worker %d works again: a lock is granted to it %s after its start", p.ID, seconds(d.faults.startToWork))
	return nil
}

func (d *director) find(number string) invoice {
	for _, inv := range d.invoices {
		if inv.Number == number {
			return inv
		}
	}
	return invoice{Number: number}
}
