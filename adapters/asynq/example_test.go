package asynqlock_test

import (
	"log"

	"github.com/hibiken/asynq"

	"github.com/quorumlock/quorumlock"
	asynqlock "github.com/quorumlock/quorumlock/adapters/asynq"
)

// Every replica of the application does this. One task is enqueued a night.
func ExampleNewScheduler() {
	var node *quorumlock.Node // from quorumlock.Open

	s := asynqlock.NewScheduler(node, asynq.RedisClientOpt{Addr: "redis:6379"}, asynqlock.Options{})
	if _, err := s.Register("nightly report", "0 2 * * *", asynq.NewTask("report", nil)); err != nil {
		log.Fatal(err)
	}
	if err := s.Start(); err != nil {
		log.Fatal(err)
	}
	defer s.Shutdown()
}
