package manifesttest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	core "k8s.io/api/core/v1"
)

// A cluster is what cluster.sh has started.
type cluster struct {
	*testing.T
	dir string
}

func start(t *testing.T) cluster {
	if os.Getenv("QUORUMLOCK_TEST_KUBERNETES") == "" {
		t.Skip("QUORUMLOCK_TEST_KUBERNETES is not set: it compiles and starts a Kubernetes")
	}
	c := cluster{T: t, dir: os.Getenv("KQ")}
	if c.dir == "" {
		c.dir = "/var/tmp/quorumlock-kubernetes"
	}
	c.script("build")
	c.script("down") // what an interrupted run has left
	t.Cleanup(func() { c.script("down") })
	c.script("up")
	return c
}

func (c cluster) script(what string) {
	cmd := exec.Command("bash", "cluster.sh", what)
	cmd.Env = append(os.Environ(), "KQ="+c.dir)
	cmd.Stderr = os.Stderr
	require.NoError(c, cmd.Run(), "cluster.sh %s", what)
}

func (c cluster) try(stdin string, args ...string) (string, error) {
	cmd := exec.Command(c.dir+"/kubectl", args...)
	var complaint bytes.Buffer
	cmd.Stdin, cmd.Stderr = strings.NewReader(stdin), &complaint
	out, err := cmd.Output()
	if err != nil {
		err = fmt.Errorf("kubectl %s: %w: %s", strings.Join(args, " "), err, &complaint)
	}
	return string(out), err
}

func (c cluster) kubectl(args ...string) string {
	c.Helper()
	out, err := c.try("", args...)
	require.NoError(c, err)
	return out
}

func (c cluster) read(into any, args ...string) {
	c.Helper()
	require.NoError(c, json.Unmarshal([]byte(c.kubectl(args...)), into))
}

// settle waits until all is as it should be. An update must not begin before: see
// docs/KUBERNETES.md.
func (c cluster) settle() {
	c.Helper()
	c.await("five pods are ready", func() bool { _, missing := c.pods(); return missing == 0 })
	c.kubectl("rollout", "status", "statefulset/app", "--timeout=3m")
}

func (c cluster) evict(pod string) error {
	_, err := c.try(fmt.Sprintf(`{"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": %q}}`, pod),
		"create", "--raw", "/api/v1/namespaces/default/pods/"+pod+"/eviction", "-f", "-")
	return err
}

// pods returns those of the manifest, and how many of them are not ready.
func (c cluster) pods() (map[string]core.Pod, int) {
	var list core.PodList
	c.read(&list, "get", "pods", "-l", "app=app", "-o", "json")
	pods, ready := make(map[string]core.Pod), 0
	for _, p := range list.Items {
		pods[p.Name] = p
		for _, is := range p.Status.Conditions {
			if is.Type == core.PodReady && is.Status == core.ConditionTrue && p.DeletionTimestamp == nil {
				ready++
			}
		}
	}
	return pods, 5 - ready
}

// members returns the replicas and their zones, as the page of a pod shows them.
func (c cluster) members(pod string) map[uint64]string {
	var page struct {
		Members []struct {
			Replica uint64
			Zone    string
		}
	}
	c.read(&page, "get", "--raw", "/api/v1/namespaces/default/pods/"+pod+":8080/proxy/quorumlock/cluster.json")
	zones := make(map[uint64]string)
	for _, m := range page.Members {
		zones[m.Replica] = m.Zone
	}
	return zones
}

// The manifest in a Kubernetes with six nodes in three zones: what docs/KUBERNETES.md says
// becomes of the pods when they start, are evicted, and are updated well and badly.
func TestInKubernetes(t *testing.T) {
	c := start(t)
	c.kubectl("apply", "--validate=strict", "-f", "../quorumlock.yaml")
	c.settle()
	c.spread()

	require.NoError(t, c.evict("app-0"))
	require.ErrorContains(t, c.evict("app-1"), "disruption budget", "one is gone already")
	c.settle()

	before, _ := c.pods()
	c.kubectl("set", "image", "statefulset/app", "app=registry.example/app:2")
	c.update("registry.example/app:2")
	for name, p := range before {
		now, _ := c.pods()
		require.NotEqual(t, p.Status.PodIP, now[name].Status.PodIP, "another address, and nobody minds")
		require.Zero(t, now[name].Status.ContainerStatuses[0].RestartCount)
	}
	c.spread()

	c.kubectl("set", "image", "statefulset/app", "app=registry.example/app:none")
	c.await("the update stops at a pod that cannot start", func() bool {
		pods, missing := c.pods()
		return missing == 1 && pods["app-4"].Spec.Containers[0].Image == "registry.example/app:none"
	})
	c.kubectl("rollout", "undo", "statefulset/app")
	c.update("registry.example/app:2")
	pods, _ := c.pods()
	require.Zero(t, pods["app-0"].Status.ContainerStatuses[0].RestartCount)
}

// spread wants two, two and one pod in the zones, no two on one node, and each replica to
// know where it is.
func (c cluster) spread() {
	c.Helper()
	var nodes core.NodeList
	c.read(&nodes, "get", "nodes", "-o", "json")
	zoneOf := make(map[string]string)
	for _, n := range nodes.Items {
		zoneOf[n.Name] = n.Labels[core.LabelTopologyZone]
	}
	pods, _ := c.pods()
	used, count, zones := make(map[string]bool), make(map[string]int), make(map[uint64]string)
	for i := range 5 {
		p := pods[fmt.Sprintf("app-%d", i)]
		used[p.Spec.NodeName] = true
		zones[uint64(i)+1] = zoneOf[p.Spec.NodeName]
		count[zoneOf[p.Spec.NodeName]]++
	}
	require.Len(c, used, 5)
	require.Equal(c, []int{1, 2, 2}, slices.Sorted(maps.Values(count)))
	c.await("the page knows the zones", func() bool { return maps.Equal(zones, c.members("app-0")) })
}

// update waits until all pods are ready with an image, and sees that never more than one
// is not.
func (c cluster) update(image string) {
	c.Helper()
	c.await("all pods have "+image, func() bool {
		pods, missing := c.pods()
		require.LessOrEqual(c, missing, 1, "one at a time")
		done := missing == 0
		for _, p := range pods {
			done = done && p.Spec.Containers[0].Image == image
		}
		return done
	})
	c.settle()
}

func (c cluster) await(what string, is func() bool) {
	c.Helper()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for limit := time.After(5 * time.Minute); !is(); {
		select {
		case <-tick.C:
		case <-limit:
			c.Fatal("it does not come to pass: ", what)
		}
	}
}
