package robfigcron_test

import (
	"log"
	"time"

	"github.com/robfig/cron/v3"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/adapters/robfigcron"
)

// Every replica of the application does this. The report is written once a night.
func ExampleAdd() {
	var node *quorumlock.Node // from quorumlock.Open

	schedule, err := cron.ParseStandard("0 2 * * *")
	if err != nil {
		log.Fatal(err)
	}
	c := cron.New()
	report := cron.FuncJob(func() { log.Println("writing the report") })
	robfigcron.Add(c, node, "nightly report", schedule, report, robfigcron.Options{
		OnError: func(job string, err error) { log.Printf("%s was skipped: %v", job, err) },
	})
	c.Start()
	defer c.Stop()
}

// In a chain it comes first.
func ExampleOnce() {
	var node *quorumlock.Node // from quorumlock.Open
	schedule := cron.Every(time.Minute)
	c := cron.New()
	c.Schedule(schedule, cron.NewChain(
		robfigcron.Once(node, "cleaning", schedule, robfigcron.Options{}),
		cron.SkipIfStillRunning(cron.DefaultLogger),
	).Then(cron.FuncJob(func() { log.Println("cleaning") })))
}
