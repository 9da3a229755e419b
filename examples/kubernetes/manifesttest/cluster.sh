#!/usr/bin/env bash
# A Kubernetes of six nodes in three zones on one Debian machine, from source, for
# TestInKubernetes: etcd, the API server, the controller manager, the scheduler, CoreDNS,
# and on each node a kubelet, containerd and kube-proxy. Everything has an address in network name
# spaces of its own (kq-*) and none outside. It needs root, 16 GB of disk, and at the first time half an hour
# of two cores to compile.
#
#   cluster.sh build           compile into $KQ/bin, and make the images
#   cluster.sh up              start; kubectl is $KQ/kubectl
#   cluster.sh down            end all of it; the next up begins anew
set -euo pipefail

KQ=${KQ:-/var/tmp/quorumlock-kubernetes}
kubernetes=1.37.2 containerd=2.4.2 coredns=1.15.0
zones=(eu-1a eu-1a eu-1b eu-1b eu-1c eu-1c)
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
export GOWORK=off GOFLAGS=-mod=mod

build() {
	command -v runc iptables conntrack ipset gcc >/dev/null && [ -d /usr/lib/cni ] || {
		apt-get update -qq
		apt-get install -y -qq --no-install-recommends runc containernetworking-plugins iptables conntrack ipset gcc libc6-dev >/dev/null
	}
	mkdir -p "$KQ"/{bin,images,src/kube/etcd,src/node/coredns}
	kube
	node
	images
}

# kube builds what k8s.io/kubernetes has: its go.mod names the other modules of Kubernetes by
# directories, which are published as v0.x.
kube() {
	cd "$KQ/src/kube"
	local dir c v=k8s.io/component-base/version
	dir=$(cd / && go mod download -json k8s.io/kubernetes@v$kubernetes | sed -n 's/.*"Dir": "\(.*\)".*/\1/p')
	sed "s/^module .*/module kube/; s/\(k8s.io\/.*\) v0.0.0\$/\1 v0${kubernetes#1}/; /^replace/,\$d" "$dir/go.mod" >go.mod
	cat "$dir/go.sum" >go.sum
	go mod edit -require=k8s.io/kubernetes@v$kubernetes
	awk '$2 == "v0'${kubernetes#1}'" {print $1}' go.mod | while read -r m; do go mod edit -replace="$m=$m@v0${kubernetes#1}"; done
	cat >etcd/main.go <<-X
		package main

		import (
			"log"
			"net/url"
			"os"

			"go.etcd.io/etcd/server/v3/embed"
		)

		func main() {
			c := embed.NewConfig()
			client, peer := url.URL{Scheme: "http", Host: "127.0.0.1:2379"}, url.URL{Scheme: "http", Host: "127.0.0.1:2380"}
			c.Dir, c.LogLevel, c.UnsafeNoFsync = os.Args[1], "warn", true
			c.ListenClientUrls, c.AdvertiseClientUrls = []url.URL{client}, []url.URL{client}
			c.ListenPeerUrls, c.AdvertisePeerUrls = []url.URL{peer}, []url.URL{peer}
			c.InitialCluster = "default=" + peer.String()
			e, err := embed.StartEtcd(c)
			if err != nil {
				log.Fatal(err)
			}
			log.Fatal(<-e.Err())
		}
	X
	for c in apiserver controller-manager scheduler proxy let ctl; do
		case $c in let | ctl) c=kube$c ;; *) c=kube-$c ;; esac
		CGO_ENABLED=0 nice go build -ldflags "-s -w -X $v.gitVersion=v$kubernetes -X $v.gitMajor=1 -X $v.gitMinor=${kubernetes:2:2} -X $v.gitTreeState=clean" \
			-o "$KQ/bin/$c" k8s.io/kubernetes/cmd/$c
	done
	CGO_ENABLED=0 nice go build -o "$KQ/bin/etcd" ./etcd
}

node() {
	cd "$KQ/src/node"
	printf 'module node\n\ngo 1.26.0\n\nrequire (\n\tgithub.com/containerd/containerd/v2 v%s\n\tgithub.com/coredns/coredns v%s\n)\n' $containerd $coredns >go.mod
	cat >coredns/main.go <<-X
		package main

		import (
			_ "github.com/coredns/coredns/plugin/bind"
			_ "github.com/coredns/coredns/plugin/cache"
			_ "github.com/coredns/coredns/plugin/errors"
			_ "github.com/coredns/coredns/plugin/kubernetes"

			"github.com/coredns/coredns/coremain"
		)

		func main() { coremain.Run() }
	X
	local c=github.com/containerd/containerd/v2
	nice go build -tags "no_btrfs no_zfs no_devmapper" -ldflags "-s -w -X $c/version.Version=v$containerd" \
		-o "$KQ/bin/" $c/cmd/containerd $c/cmd/containerd-shim-runc-v2 $c/cmd/ctr
	CGO_ENABLED=0 nice go build -o "$KQ/bin/coredns" ./coredns
}

# images makes one of the sandbox' first process and two of the example: there is no registry.
images() {
	cd "$KQ/images"
	local pause
	pause=$(cd / && go mod download -json k8s.io/kubernetes@v$kubernetes | sed -n 's/.*"Dir": "\(.*\)".*/\1/p')/build/pause/linux/pause.c
	gcc -Os -static -DVERSION=1 -o pause "$pause"
	(cd "$here/.." && CGO_ENABLED=0 go build -mod=readonly -o "$KQ/images/app" .)
	image quorumlock.test/pause:1 pause
	image registry.example/app:1 app
	image registry.example/app:2 app
}

image() { # TAG PROGRAM
	local d tag=${1##*/} config
	d=$(mktemp -d)
	tar -cf "$d/layer.tar" "$2"
	config=$(printf '{"architecture":"amd64","os":"linux","config":{"Entrypoint":["/%s"],"Env":["IMAGE=%s"]},"rootfs":{"type":"layers","diff_ids":["sha256:%s"]}}' \
		"$2" "$1" "$(sha256sum <"$d/layer.tar" | cut -d' ' -f1)")
	printf %s "$config" >"$d/config.json"
	printf '[{"Config":"config.json","RepoTags":["%s"],"Layers":["layer.tar"]}]' "$1" >"$d/manifest.json"
	tar -C "$d" -cf "${tag/:/-}.tar" config.json layer.tar manifest.json
	rm -r "$d"
}

inside() { nsenter --net=/run/netns/"$1" "${@:2}"; }

# daemon starts a program in a name space, with its log in $run/log.
daemon() { # NETNS NAME PROGRAM ARGUMENTS...
	(cd "$run" && exec setsid nsenter --net=/run/netns/"$1" "${@:3}" >"log/$2" 2>&1 </dev/null) &
}

up() {
	run=$KQ/run
	mkdir -p "$run"/{log,cfg,pv}
	network
	control
	local i
	for i in "${!zones[@]}"; do start_node $((i + 1)) "${zones[i]}"; done
	for i in $(seq 60); do
		[ "$("$KQ/kubectl" get nodes --no-headers 2>/dev/null | grep -cw Ready)" = ${#zones[@]} ] && return
		sleep 2
	done
	echo "the nodes do not become ready; see $run/log" >&2
	return 1
}

network() {
	local i j n
	ip netns add kq-hub
	ip -n kq-hub link set lo up
	ip -n kq-hub link add br0 type bridge
	ip -n kq-hub addr add 10.99.0.1/24 dev br0
	ip -n kq-hub link set br0 up
	inside kq-hub sysctl -qw net.ipv4.ip_forward=1
	for i in $(seq ${#zones[@]}); do
		n=kq-n$i
		ip netns add $n
		ip -n kq-hub link add v$i type veth peer name eth0 netns $n
		ip -n kq-hub link set v$i master br0 up
		ip -n $n link set lo up
		ip -n $n addr add 10.99.0.1$i/24 dev eth0
		ip -n $n link set eth0 up
		ip -n $n route add default via 10.99.0.1
		inside $n sysctl -qw net.ipv4.ip_forward=1
		ip -n kq-hub route add 10.244.$i.0/24 via 10.99.0.1$i
		for j in $(seq ${#zones[@]}); do [ "$i" = "$j" ] || ip -n $n route add 10.244.$j.0/24 via 10.99.0.1$j; done
	done
}

access() { # NAME USER [GROUP]: a token, and a file that shows it
	echo "token-$1,$2,$1,\"${3:-}\"" >>"$run/cfg/tokens"
	cat >"$run/cfg/$1" <<-X
		{apiVersion: v1, kind: Config, current-context: x, contexts: [{name: x, context: {cluster: c, user: u}}],
		 clusters: [{name: c, cluster: {server: "https://10.99.0.1:6443", certificate-authority: $run/pki/apiserver.crt}}],
		 users: [{name: u, user: {token: token-$1}}]}
	X
}

control() {
	local i v
	openssl genrsa -out "$run/cfg/sa.key" 2048 2>/dev/null
	access admin admin system:masters
	access kcm system:kube-controller-manager
	access sched system:kube-scheduler
	access proxy system:kube-proxy
	access dns dns system:masters
	for i in $(seq ${#zones[@]}); do access n$i system:node:n$i system:nodes; done
	printf '#!/bin/sh\nexec nsenter --net=/run/netns/kq-hub %s --kubeconfig %s "$@"\n' "$KQ/bin/kubectl" "$run/cfg/admin" >"$KQ/kubectl"
	chmod +x "$KQ/kubectl"
	daemon kq-hub etcd "$KQ/bin/etcd" "$run/etcd"
	daemon kq-hub apiserver "$KQ/bin/kube-apiserver" --etcd-servers=http://127.0.0.1:2379 --bind-address=10.99.0.1 --cert-dir="$run/pki" \
		--service-cluster-ip-range=10.96.0.0/16 --token-auth-file=cfg/tokens --authorization-mode=Node,RBAC --enable-admission-plugins=NodeRestriction \
		--service-account-issuer=https://kubernetes.default.svc --service-account-key-file=cfg/sa.key --service-account-signing-key-file=cfg/sa.key \
		--kubelet-preferred-address-types=InternalIP
	for i in $(seq 120); do "$KQ/kubectl" get --raw /readyz >/dev/null 2>&1 && break || sleep 1; done
	daemon kq-hub kcm "$KQ/bin/kube-controller-manager" --kubeconfig=cfg/kcm --service-account-private-key-file=cfg/sa.key \
		--root-ca-file=pki/apiserver.crt --leader-elect=false --use-service-account-credentials --cert-dir="$run/pki-kcm" --bind-address=127.0.0.1
	printf '#\n%s\n' "{apiVersion: kubescheduler.config.k8s.io/v1, kind: KubeSchedulerConfiguration, leaderElection: {leaderElect: false}, clientConnection: {kubeconfig: $run/cfg/sched}}" >"$run/cfg/scheduler"
	daemon kq-hub scheduler "$KQ/bin/kube-scheduler" --config=cfg/scheduler --cert-dir="$run/pki-sched" --bind-address=127.0.0.1
	# As kubeadm sets it up.
	printf '.:53 {\n bind 10.99.0.1\n errors\n kubernetes cluster.local {\n  kubeconfig %s x\n  ttl 30\n }\n cache 30 {\n  disable success cluster.local\n  disable denial cluster.local\n }\n}\n' "$run/cfg/dns" >"$run/cfg/Corefile"
	daemon kq-hub dns "$KQ/bin/coredns" -conf cfg/Corefile
	"$KQ/kubectl" create clusterrolebinding proxies --clusterrole=system:node-proxier --user=system:kube-proxy >/dev/null
	"$KQ/kubectl" label namespace default pod-security.kubernetes.io/enforce=restricted >/dev/null
	{ # volumes that every node can reach, since all have one disk
		echo '{apiVersion: storage.k8s.io/v1, kind: StorageClass, metadata: {name: disk, annotations: {storageclass.kubernetes.io/is-default-class: "true"}}, provisioner: kubernetes.io/no-provisioner, volumeBindingMode: WaitForFirstConsumer}'
		for v in 1 2 3 4 5 6 7 8; do
			mkdir -p "$run/pv/$v"
			printf -- '---\n{apiVersion: v1, kind: PersistentVolume, metadata: {name: pv%s}, spec: {capacity: {storage: 8Gi}, accessModes: [ReadWriteOncePod], storageClassName: disk, persistentVolumeReclaimPolicy: Retain, local: {path: %s}, nodeAffinity: {required: {nodeSelectorTerms: [{matchExpressions: [{key: kubernetes.io/os, operator: In, values: [linux]}]}]}}}}\n' $v "$run/pv/$v"
		done
	} | "$KQ/kubectl" apply -f - >/dev/null
}

start_node() { # I ZONE
	local i=$1 d=$run/n$1 c
	mkdir -p "$d"/{cni,sys}
	cat >"$d/cni/10.conflist" <<-X
		{"cniVersion": "1.0.0", "name": "kq", "plugins": [{"type": "bridge", "bridge": "cni0", "isGateway": true, "hairpinMode": true,
		 "ipam": {"type": "host-local", "dataDir": "$d/ipam", "ranges": [[{"subnet": "10.244.$i.0/24"}]], "routes": [{"dst": "0.0.0.0/0"}]}}]}
	X
	cat >"$d/containerd.toml" <<-X
		version = 3
		root = "$d/containerd"
		state = "$d/state"
		[grpc]
		address = "$d/cri"
		[plugins."io.containerd.cri.v1.images".pinned_images]
		sandbox = "quorumlock.test/pause:1"
		[plugins."io.containerd.cri.v1.runtime"]
		restrict_oom_score_adj = true # a machine may not allow to lower it
		[plugins."io.containerd.cri.v1.runtime".cni]
		bin_dirs = ["/usr/lib/cni"]
		conf_dir = "$d/cni"
		[plugins."io.containerd.nri.v1.nri"]
		disable = true
	X
	cat >"$d/kubelet.yaml" <<-X
		# not JSON, although it looks like it
		{apiVersion: kubelet.config.k8s.io/v1beta1, kind: KubeletConfiguration, address: 10.99.0.1$i, healthzPort: 10248,
		 authentication: {anonymous: {enabled: true}, webhook: {enabled: false}}, authorization: {mode: AlwaysAllow},
		 clusterDNS: [10.99.0.1], clusterDomain: cluster.local, resolvConf: $d/resolv.conf,
		 containerRuntimeEndpoint: "unix://$d/cri", cgroupDriver: cgroupfs, cgroupRoot: /kq/n$i, failCgroupV1: false, failSwapOn: false,
		 podLogsDir: $d/podlogs, volumePluginDir: $d/plugins, imageMinimumGCAge: 1000h,
		 evictionHard: {memory.available: 1Mi, nodefs.available: 1Mi, imagefs.available: 1Mi}}
	X
	echo "nameserver 10.99.0.1" >"$d/resolv.conf"
	printf '#\n%s\n' "{apiVersion: kubeproxy.config.k8s.io/v1alpha1, kind: KubeProxyConfiguration, clientConnection: {kubeconfig: $run/cfg/proxy}, mode: iptables, hostnameOverride: n$i, clusterCIDR: 10.244.0.0/16, conntrack: {maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}}" >"$d/proxy.yaml"
	for c in $(cgroups); do
		mkdir -p "$c/kq/n$i"
		[ ! -f "$c/cpuset.cpus" ] || for f in cpuset.cpus cpuset.mems; do tee "$c/kq/$f" "$c/kq/n$i/$f" <"$c/$f" >/dev/null; done
	done
	# What a node leaves in /run goes with it, and what its kubelet sets for the machine are files.
	cat >"$d/start" <<-X
		mount --make-rprivate /
		mount -t tmpfs tmpfs /run
		for f in vm/overcommit_memory vm/panic_on_oom kernel/panic kernel/panic_on_oops kernel/keys/root_maxkeys kernel/keys/root_maxbytes; do
			cp /proc/sys/\$f $d/sys/ && mount --bind $d/sys/\${f##*/} /proc/sys/\$f
		done
		export PATH=$KQ/bin:\$PATH
		containerd -c $d/containerd.toml >$run/log/n$i-containerd 2>&1 &
		until [ -S $d/cri ]; do sleep .2; done
		for f in $KQ/images/*.tar; do ctr -a $d/cri -n k8s.io images import \$f; done >$run/log/n$i-images 2>&1
		kube-proxy --config=$d/proxy.yaml >$run/log/n$i-proxy 2>&1 &
		exec kubelet --config=$d/kubelet.yaml --kubeconfig=$run/cfg/n$i --hostname-override=n$i --node-ip=10.99.0.1$i \
			--root-dir=$d/kubelet --cert-dir=$d/pki --node-labels=topology.kubernetes.io/zone=$2
	X
	daemon kq-n$i n$i-kubelet unshare -m bash "$d/start"
}

# cgroups lists the mounts: several with version 1, one with version 2.
cgroups() { awk '$3 == "cgroup" || $3 == "cgroup2" {print $2}' /proc/mounts; }

down() {
	local n c pids
	for n in $(ip netns list | awk '/^kq-/ {print $1}'); do
		pids=$(ip netns pids "$n")
		[ -z "$pids" ] || kill -9 $pids 2>/dev/null || true
	done
	for c in $(cgroups); do
		[ -d "$c/kq" ] || continue
		pids=$(find "$c/kq" -name cgroup.procs -exec cat {} + 2>/dev/null || true)
		[ -z "$pids" ] || kill -9 $pids 2>/dev/null || true
	done
	for c in $(cgroups); do
		[ ! -d "$c/kq" ] || for n in $(seq 100); do find "$c/kq" -depth -type d -exec rmdir {} + 2>/dev/null && break || sleep .1; done
	done
	for n in $(ip netns list | awk '/^kq-/ {print $1}'); do ip netns delete "$n"; done
	rm -rf "$KQ/run" "$KQ/kubectl"
}

case ${1:-} in
build | up | down) "$1" ;;
*) sed -n 's/^#   //p' "${BASH_SOURCE[0]}" >&2; exit 2 ;;
esac
