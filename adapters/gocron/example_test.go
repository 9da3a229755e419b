package gocronlock_test

import (
	"log"

	"github.com/go-co-op/gocron/v2"

	"github.com/quorumlock/quorumlock"
	gocronlock "github.com/quorumlock/quorumlock/adapters/gocron"
)

// Every replica of the application does this. The report is written once a night.
func ExampleNewScheduler() {
	var node *quorumlock.Node // from quorumlock.Open

	s, err := gocronlock.NewScheduler(node, gocronlock.Options{
		OnError: func(job string, err error) { log.Printf("%s was skipped: %v", job, err) },
	})
	if err != nil {
		log.Fatal(err)
	}
	defer s.Shutdown()
	_, err = s.NewJob(
		gocron.CronJob("0 2 * * *", false),
		gocron.NewTask(func() { log.Println("writing the report") }),
		gocron.WithName("nightly report"), // the job's name in the cluster
	)
	if err != nil {
		log.Fatal(err)
	}
	s.Start()
}
