package quorumlock

import _ "unsafe" // for go:linkname

// The engine makes two queues for each group that are as long as a server with many
// clients needs them, of some 900 KB together, and has no option for it but a file in the
// working directory of the program. What is under way here at once is little: window
// batches and a renewal of each process, and what Raft says of them. Should a queue be
// full all the same, the proposal or message is lost, and said again.

//go:linkname engineProposals github.com/lni/dragonboat/v4.incomingProposalsMaxLen
var engineProposals uint64

//go:linkname engineReceived github.com/lni/dragonboat/v4.receiveQueueLen
var engineReceived uint64

func init() { engineProposals, engineReceived = 256, 256 }
