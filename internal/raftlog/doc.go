// Package raftlog keeps the Raft logs of a process on disk: the terms, votes, entries and
// snapshot records of all its groups, in one append-only log.
//
// # Layout
//
// The log is a directory of segment files, numbered without a gap. A segment is a header
// and a sequence of frames; a frame is one record behind a length, a sequence number and a
// CRC-32C. One call that changes something durable is one record: written with one write(2)
// and followed by one fdatasync, in the goroutine of the caller. Memory holds what is
// asked for all the time, terms, votes and the like, and of each entry only where it is; the
// entries themselves are read back from the files. What memory holds is made of the
// records, by the same code when they are written and when they are read at the next start
// (node.apply).
//
// Each segment begins with a checkpoint, a record of all that is known but for the bytes of
// the entries. So only entries hold an old segment, and one without any is used again. If
// few entries hold much space, those of the oldest segment are carried over to the newest.
//
// # What must never be lost
//
// A term, a vote and an entry are promises to other replicas. Each is on the disk before
// the call that brought it returns, and the engine sends no acknowledgement before that. A
// record is found again whole or not at all.
//
// # What may be lost
//
// The commit index is no promise. It says what a majority is known to have stored; a
// replica that has forgotten it is told again by the leader, or finds it out as the leader
// (Ongaro's thesis keeps it among the volatile state: figure 3.1 and section 3.8). So an
// update of nothing but the commit index is not written. It is kept in memory, and every
// record carries the newest commit index of the replicas it is about. Therefore
//
//   - with each promise on the disk is the commit index that was known when it was made. A
//     replica restarts as if the messages that came after its last promise, and only moved
//     its commit index, had not reached it. Raft must bear that anyway.
//   - it matters for members, which the engine changes when a change is applied and not when
//     it is appended. Of two changes, the second is proposed only after the first was
//     applied, so the message that brings the second brings the commit of the first, and
//     both get onto the disk in one record: a replica that has an entry of one configuration
//     always restarts knowing that all earlier changes of members are committed.
//   - the state machine is in memory and is rebuilt from a snapshot and the entries behind
//     it. (A state machine with a disk of its own could be ahead of the commit index after a
//     restart; the engine allows for it, but nobody here has tried.)
//   - a snapshot covers only what is committed, and the engine refuses to start with a commit
//     index before its snapshot. So the record that brings a snapshot also raises the commit
//     index to it.
//
// # A torn tail and a corrupted middle
//
// There is one write under way at a time, and after a failed one there is never another:
// the store has failed for good, since nobody can tell what of a failed write or fsync is on
// the disk, and a second fsync may succeed without having written what the first did not. So
// all frames but the last one were acknowledged as durable by the system. The last may be
// torn; then it was never acknowledged to anybody, and is cut off. Any other frame that does
// not verify was acknowledged, and has rotted: opening fails, since a vote or an entry may be
// in it. Which of the two it is shows in what follows: a torn frame has no successor. Close
// leaves a record of commit indexes behind, so that after a clean end no promise is
// in the last. What cannot be told from a torn write is rot in the very last record after a
// crash, and a newest segment that was removed by hand.
//
// Frames of an earlier use of a file are never taken for new ones: they have lower sequence
// numbers, which are covered by the checksum, as is a random number of this log, so that
// not even a record that holds the picture of a frame can pass for one.
//
// After a start nothing is appended to an old segment. The last frame that was found could be
// in the page cache only, its fsync having failed or never been called: what it says
// is written again into a new segment, which takes its place under its sequence number. A
// segment ends where the next one begins, whatever lies behind, so a torn frame can never
// be joined with later ones. A new segment gets its name only when its beginning is on the
// disk.
package raftlog
