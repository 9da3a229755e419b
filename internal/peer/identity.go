package peer

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"time"
)

// protocol is the version of the handshake and of what follows it.
const protocol = 1

const (
	maxCluster = 1024
	maxAddress = 1024
	maxText    = 4096
	maxRoster  = 256

	// MaxZone bounds the name of a zone, in bytes.
	MaxZone = 64

	// maxNews bounds what of a greeting is about others' addresses, in bytes, and
	// maxGone the removed replicas that it names: it is a frame of maxGreeting.
	maxNews = 40 << 10
	maxGone = 128
)

// A Storage names one life of a replica's directory: it is drawn at random when
// the directory is first used, and gone when the directory is wiped.
type Storage [16]byte

func (s Storage) String() string { return hex.EncodeToString(s[:]) }

// An Identity is what a replica says of itself.
type Identity struct {
	Cluster  string  // differently named clusters refuse each other
	Replica  uint64  // never 0
	Storage  Storage // of its directory
	Founders uint64  // hash of the founders' ids; 0 when it joined later
	Epoch    uint64  // how often its directory was opened
	Life     uint64  // drawn at random each time, since an old copy counts on from where it was
	Address  string  // where it is dialled
	Level    byte    // the highest feature level that its process speaks; 0 before there were any
	Groups   int     // Raft groups that the cluster was founded with; 0 stands for 1
	Zone     string  // what fails together with it; for people, and for those who place replicas
	NoVote   bool    // it wants no vote
}

// hello is the greeting of either side: who it is, whom it wants to talk to,
// and whose storages it knows. The roster spreads what only one replica has
// seen, so that a wiped directory is refused even by those who never met it.
type hello struct {
	Identity
	to     uint64
	roster []sighting
	news   []news
	gone   []uint64 // replicas that were removed for good
}

// sighting is the storage that a replica was seen with.
type sighting struct {
	replica uint64
	storage Storage
}

// news is what a replica tells of another, beside its storage.
type news struct {
	replica uint64
	heard   time.Duration // how long ago it was last heard, at first or second hand; negative for never
	said
}

// said is what a replica said of itself, or was said of it when it was added.
type said struct {
	epoch   uint64 // of the life in which it said so; 0 when it was another
	at      int64  // when it was said by another: Unix time in ms
	address string
	zone    string
	noVote  bool
}

// newer tells whether s was said later than t.
func (s said) newer(t said) bool {
	return s.epoch > t.epoch || s.epoch == t.epoch && s.at > t.at
}

// A Code says why a replica refuses another.
type Code uint8

const (
	// CodeProtocol: the other speaks another version of the protocol.
	CodeProtocol Code = iota + 1
	// CodeCluster: the other belongs to another cluster.
	CodeCluster
	// CodeReplica: the other is not the replica it was taken for.
	CodeReplica
	// CodeMembers: the other was founded with other members.
	CodeMembers
	// CodeWiped: the other's storage is not the one its replica id was seen
	// with, or is an older copy of it.
	CodeWiped
	// CodeCertificate: the other's TLS certificate is not that of the replica
	// which it says it is.
	CodeCertificate
	// CodeGroups: the other was founded with another number of groups.
	CodeGroups
	// CodeRemoved: the other was removed from the cluster.
	CodeRemoved
)

// A Refusal is the answer of a replica that will not talk to another. It is an
// error.
type Refusal struct {
	Code Code
	By   uint64 // the replica that refuses
	Text string // why, and what to do
}

func (r *Refusal) Error() string {
	return fmt.Sprintf("replica %d refuses: %s", r.By, r.Text)
}

var errGreeting = errors.New("peer: malformed greeting")

func (h *hello) encode() []byte {
	b := binary.BigEndian.AppendUint16(nil, protocol)
	b = appendString(b, h.Cluster)
	b = binary.BigEndian.AppendUint64(b, h.Replica)
	b = append(b, h.Storage[:]...)
	b = binary.BigEndian.AppendUint64(b, h.Founders)
	b = binary.BigEndian.AppendUint64(b, h.Epoch)
	b = binary.BigEndian.AppendUint64(b, h.Life)
	b = appendString(b, h.Address)
	b = binary.BigEndian.AppendUint64(b, h.to)
	b = binary.BigEndian.AppendUint16(b, uint16(len(h.roster)))
	for _, s := range h.roster {
		b = binary.BigEndian.AppendUint64(b, s.replica)
		b = append(b, s.storage[:]...)
	}
	b = binary.BigEndian.AppendUint16(b, uint16(h.groups()))
	b = append(b, h.Level)
	b = appendString(b, h.Zone)
	b = appendBool(b, h.NoVote)
	b = binary.BigEndian.AppendUint16(b, uint16(len(h.news)))
	for _, n := range h.news {
		b = n.append(b)
	}
	b = binary.BigEndian.AppendUint16(b, uint16(len(h.gone)))
	for _, id := range h.gone {
		b = binary.BigEndian.AppendUint64(b, id)
	}
	return b
}

func (n news) append(b []byte) []byte {
	b = binary.BigEndian.AppendUint64(b, n.replica)
	b = binary.BigEndian.AppendUint64(b, uint64(n.heard))
	b = binary.BigEndian.AppendUint64(b, n.epoch)
	b = binary.BigEndian.AppendUint64(b, uint64(n.at))
	b = appendString(b, n.address)
	b = appendString(b, n.zone)
	return appendBool(b, n.noVote)
}

// groups is how many groups there are: one where none was said.
func (i *Identity) groups() int { return max(i.Groups, 1) }

// decodeHello reads a greeting. Bytes behind the known fields are a newer
// version's additions, and ignored. The protocol version comes back even when
// the rest cannot be read, since another version may mean another layout.
func decodeHello(b []byte) (h hello, version uint16, err error) {
	r := reader{b: b}
	version = r.uint16()
	if r.bad || version != protocol {
		return hello{}, version, errGreeting
	}
	h.Cluster = r.string(maxCluster)
	h.Replica = r.uint64()
	copy(h.Storage[:], r.bytes(16))
	h.Founders = r.uint64()
	h.Epoch = r.uint64()
	h.Life = r.uint64()
	h.Address = r.string(maxAddress)
	h.to = r.uint64()
	n := int(r.uint16())
	if n > maxRoster {
		return hello{}, version, errGreeting
	}
	for range n {
		var s sighting
		s.replica = r.uint64()
		copy(s.storage[:], r.bytes(16))
		h.roster = append(h.roster, s)
	}
	if len(r.b) > 0 { // a version that knew one group only did not say so
		h.Groups = int(r.uint16())
	}
	if len(r.b) > 0 { // nor its level
		h.Level = r.bytes(1)[0]
	}
	if len(r.b) > 0 {
		h.decodeMore(&r)
	}
	if r.bad || h.Replica == 0 || h.Storage == (Storage{}) {
		return hello{}, version, errGreeting
	}
	return h, version, nil
}

// decodeMore reads what was not there in the first version of the greeting.
func (h *hello) decodeMore(r *reader) {
	h.Zone, h.NoVote = r.string(MaxZone), r.bool()
	for n := int(r.uint16()); n > 0 && !r.bad; n-- {
		h.news = append(h.news, news{
			replica: r.uint64(), heard: time.Duration(r.uint64()),
			said: said{epoch: r.uint64(), at: int64(r.uint64()), address: r.string(maxAddress), zone: r.string(MaxZone), noVote: r.bool()},
		})
	}
	for n := int(r.uint16()); n > 0 && !r.bad; n-- {
		h.gone = append(h.gone, r.uint64())
	}
}

func (r *Refusal) encode() []byte {
	b := []byte{byte(r.Code)}
	b = binary.BigEndian.AppendUint64(b, r.By)
	return appendString(b, r.Text)
}

func decodeRefusal(b []byte) (*Refusal, error) {
	r := reader{b: b}
	code := r.bytes(1)
	refusal := &Refusal{By: r.uint64(), Text: r.string(maxText)}
	if r.bad {
		return nil, errGreeting
	}
	refusal.Code = Code(code[0])
	return refusal, nil
}

func appendString(b []byte, s string) []byte {
	b = binary.BigEndian.AppendUint16(b, uint16(len(s)))
	return append(b, s...)
}

func appendBool(b []byte, yes bool) []byte {
	if yes {
		return append(b, 1)
	}
	return append(b, 0)
}

// reader takes fields off b until one is missing.
type reader struct {
	b   []byte
	bad bool
}

func (r *reader) bytes(n int) []byte {
	if r.bad || len(r.b) < n {
		r.bad = true
		return make([]byte, n)
	}
	b := r.b[:n]
	r.b = r.b[n:]
	return b
}

func (r *reader) uint16() uint16 { return binary.BigEndian.Uint16(r.bytes(2)) }
func (r *reader) uint64() uint64 { return binary.BigEndian.Uint64(r.bytes(8)) }

func (r *reader) bool() bool { return r.bytes(1)[0] == 1 }

func (r *reader) string(most int) string {
	n := int(r.uint16())
	if n > most {
		r.bad = true
		return ""
	}
	return string(r.bytes(n))
}
