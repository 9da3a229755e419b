package quorumlock

import "github.com/quorumlock/quorumlock/internal/peer"

// TLSFiles name the files, in PEM, by which replicas prove to each other who they
// are, over TLS 1.3. They are looked at twice a second: what is new there is used by
// the connections that are made from then on, and those that are there go on.
// Files that cannot be used are warned about in the log, and what they held before
// stays in use.
//
// A certificate must be signed by an authority of the other replicas' CA, be for
// server and for client authentication, and be valid for the replica's host: that
// of its Address as each of the others has it in its Members, a name or an IP. A
// certificate with a URI quorumlock://CLUSTER/ID, of the cluster's name and a
// replica's id, speaks for these replicas only and wherever they are; its hosts
// count for nothing. Once a replica joins, which is in nobody's Members, it and all
// others need such URIs.
//
// To change the authority, let CA hold the old one and the new one on all
// replicas; then replace the certificates; then take the old one out.
type TLSFiles struct {
	Cert string // this replica's certificate, followed by those between it and an authority
	Key  string // the private key of that certificate, not encrypted
	CA   string // the authorities that may sign the replicas' certificates, and nobody else's
}

// loadTLS reads the files of TLS. They are those of this process's options, so it
// finds at once whatever the other replicas would refuse.
func (o *Options) loadTLS() (err error) {
	if o.TLS == nil {
		return nil
	}
	files := *o.TLS
	o.TLS = &files // the caller may change its own
	who := peer.Identity{Cluster: o.Cluster, Replica: o.ReplicaID, Address: o.Address}
	if o.Join {
		who.Address = "" // which is in nobody's Members
	}
	o.certificates, err = peer.LoadCertificates(peer.TLSFiles(files), who)
	return err
}
