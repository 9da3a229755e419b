//go:build !lean

package main

import "context"

// peers start the systems that quorumlock is compared with. Built with the tag
// lean, the program has none: that is how a replica runs in a process of its own,
// whose memory would otherwise be mostly that of etcd's packages.
var peers = map[string]func(ctx context.Context, name, dir string) (system, error){
	etcdName:    startEtcd,
	rueidisName: startRedis,
	goredisName: startRedis,
}
