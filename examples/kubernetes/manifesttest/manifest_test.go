package manifesttest

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	apps "k8s.io/api/apps/v1"
	core "k8s.io/api/core/v1"
	networking "k8s.io/api/networking/v1"
	policy "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"
)

// A manifest is the file, decoded.
type manifest struct {
	headless, web core.Service
	budget        policy.PodDisruptionBudget
	wall          networking.NetworkPolicy
	set           apps.StatefulSet
}

func read(t *testing.T) (m manifest) {
	raw, err := os.ReadFile("../quorumlock.yaml")
	require.NoError(t, err)
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{apps.AddToScheme, core.AddToScheme, networking.AddToScheme, policy.AddToScheme} {
		require.NoError(t, add(scheme))
	}
	into := []any{&m.headless, &m.web, &m.budget, &m.wall, &m.set}
	documents := bytes.Split(raw, []byte("\n---\n"))
	require.Len(t, documents, len(into))
	for i, d := range documents {
		require.NoError(t, yaml.UnmarshalStrict(d, into[i]), "%s", d) // no field that there is not, none twice
		kind := into[i].(runtime.Object).GetObjectKind().GroupVersionKind()
		require.NotEqual(t, schema.GroupVersionKind{}, kind)
		known, _, err := scheme.ObjectKinds(into[i].(runtime.Object))
		require.NoError(t, err)
		require.Contains(t, known, kind)
	}
	return m
}

// What belongs together says so, and what is needed for a majority is there.
func TestManifestHoldsTogether(t *testing.T) {
	m := read(t)
	labels, pod := m.set.Spec.Template.Labels, m.set.Spec.Template.Spec
	require.Equal(t, labels, m.set.Spec.Selector.MatchLabels)
	require.Equal(t, labels, m.headless.Spec.Selector)
	require.Equal(t, labels, m.web.Spec.Selector)
	require.Equal(t, labels, m.budget.Spec.Selector.MatchLabels)
	require.Equal(t, labels, m.wall.Spec.PodSelector.MatchLabels)
	require.Equal(t, labels, m.wall.Spec.Ingress[0].From[0].PodSelector.MatchLabels)
	require.Equal(t, m.headless.Name, m.set.Spec.ServiceName)
	require.Equal(t, core.ClusterIPNone, m.headless.Spec.ClusterIP)
	require.True(t, m.headless.Spec.PublishNotReadyAddresses)
	require.EqualValues(t, 5, *m.set.Spec.Replicas)
	require.Equal(t, 1, m.budget.Spec.MaxUnavailable.IntValue())
	require.Equal(t, apps.ParallelPodManagement, m.set.Spec.PodManagementPolicy)
	require.Equal(t, apps.RollingUpdateStatefulSetStrategyType, m.set.Spec.UpdateStrategy.Type)
	require.Equal(t, apps.RetainPersistentVolumeClaimRetentionPolicyType, m.set.Spec.PersistentVolumeClaimRetentionPolicy.WhenScaled)
	require.Greater(t, *pod.TerminationGracePeriodSeconds, int64(15), "farewell in main.go")
	require.Equal(t, core.LabelTopologyZone, pod.TopologySpreadConstraints[0].TopologyKey)
	for _, c := range pod.TopologySpreadConstraints {
		require.Equal(t, labels, c.LabelSelector.MatchLabels)
	}
	app := pod.Containers[0]
	ports := make(map[string]int32)
	for _, p := range app.Ports {
		ports[p.Name] = p.ContainerPort
	}
	for _, s := range []core.Service{m.headless, m.web} {
		for _, p := range s.Spec.Ports {
			require.Contains(t, ports, p.TargetPort.StrVal)
		}
	}
	for _, rule := range m.wall.Spec.Ingress {
		for _, p := range rule.Ports {
			require.Contains(t, ports, p.Port.StrVal)
		}
	}
	env := environment(app)
	require.Equal(t, fmt.Sprintf("%s-ORDINAL.%s:%d", m.set.Name, m.headless.Name, ports["raft"]), env["ADDRESS"])
	require.Equal(t, fmt.Sprintf(":%d", ports["raft"]), env["LISTEN"])
	require.Equal(t, fmt.Sprintf(":%d", ports["http"]), env["HTTP"])
	require.Equal(t, "5", env["FOUNDERS"])
	from := make(map[string]*core.EnvVarSource)
	for _, e := range app.Env {
		from[e.Name] = e.ValueFrom
	}
	require.Equal(t, "metadata.labels['"+core.LabelTopologyZone+"']", from["ZONE"].FieldRef.FieldPath)
	require.True(t, *from["OPERATOR_TOKEN"].SecretKeyRef.Optional)
	require.True(t, *from["REPLICA_IDS"].ConfigMapKeyRef.Optional)
	require.True(t, strings.HasPrefix(env["DIR"], app.VolumeMounts[0].MountPath+"/"))
	require.Equal(t, m.set.Spec.VolumeClaimTemplates[0].Name, app.VolumeMounts[0].Name)
}

// environment is what the manifest gives the container; what it takes from elsewhere is
// empty.
func environment(c core.Container) map[string]string {
	env := make(map[string]string)
	for _, e := range c.Env {
		env[e.Name] = e.Value
	}
	return env
}

func freePort(t *testing.T) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	return strconv.Itoa(l.Addr().(*net.TCPAddr).Port)
}

// The example starts with the variables of the manifest and nothing else, and answers
// each probe at its path: one that is alone says that it lives, and that it is not ready.
func TestProbesAreAnswered(t *testing.T) {
	m := read(t)
	app := m.set.Spec.Template.Spec.Containers[0]
	binary := filepath.Join(t.TempDir(), "app")
	build := exec.Command("go", "build", "-o", binary, ".")
	build.Dir = ".."
	out, err := build.CombinedOutput()
	require.NoError(t, err, "%s", out)
	for what, c := range map[string]struct {
		founders string
		ready    int
	}{
		"a majority": {"1", http.StatusOK},
		"a minority": {"2", http.StatusServiceUnavailable},
	} {
		t.Run(what, func(t *testing.T) {
			env := environment(app)
			raft, web := freePort(t), freePort(t)
			env["POD_NAME"] = m.set.Name + "-0"
			env["FOUNDERS"], env["HTTP"], env["DIR"] = c.founders, "127.0.0.1:"+web, filepath.Join(t.TempDir(), "data")
			env["ADDRESS"], env["LISTEN"] = "127.0.0.1ORDINAL:"+raft, "127.0.0.1:"+raft
			if c.founders == "1" {
				env["ADDRESS"] = "127.0.0.1:" + raft
			}
			program := exec.Command(binary)
			program.Stderr = io.Discard
			for name, value := range env {
				program.Env = append(program.Env, name+"="+value)
			}
			require.NoError(t, program.Start())
			t.Cleanup(func() { _ = program.Process.Kill() })
			status := func(p *core.Probe) int {
				require.Equal(t, "http", p.HTTPGet.Port.StrVal)
				r, err := http.Get("http://127.0.0.1:" + web + p.HTTPGet.Path)
				if err != nil {
					return 0 // not yet
				}
				defer r.Body.Close()
				return r.StatusCode
			}
			await := func(p *core.Probe, want int) {
				t.Helper()
				require.Eventually(t, func() bool { return status(p) == want }, 30*time.Second, 20*time.Millisecond)
			}
			await(app.StartupProbe, http.StatusOK)
			await(app.LivenessProbe, http.StatusOK)
			await(app.ReadinessProbe, c.ready)
			require.Equal(t, http.StatusOK, status(app.LivenessProbe), "to be without a majority is no reason to be restarted")
			require.NoError(t, program.Process.Signal(os.Interrupt))
			_ = program.Wait()
			if c.ready == http.StatusOK {
				require.Zero(t, program.ProcessState.ExitCode(), "it ends cleanly when it is told to")
			}
		})
	}
}
