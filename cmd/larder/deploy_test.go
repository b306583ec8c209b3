package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/larder-cdn/larder/internal/settings"
	"github.com/larder-cdn/larder/internal/testkit/npmtest"
)

// readDeployments returns all YAML documents of a file in docs/deploy.
func readDeployments(t *testing.T, name string) (all []map[string]any, data []byte) {
	data, err := os.ReadFile(filepath.Join("../../docs/deploy", name))
	if err != nil {
		t.Fatal(err)
	}
	for d := yaml.NewDecoder(bytes.NewReader(data)); ; {
		var document map[string]any
		if err := d.Decode(&document); errors.Is(err, io.EOF) {
			return all, data
		} else if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		all = append(all, document)
	}
}

// checkDeployed tests that the arguments of a container are settings that larder takes together.
func checkDeployed(t *testing.T, name string, args []string, grace time.Duration) {
	a := &cli{settings: settings.New()}
	command, rest, err := newRoot(a).Find(args)
	if err != nil || command.Name() != "up" {
		t.Fatalf("%s: %q: %v", name, args, err)
	}
	if err := command.ParseFlags(rest); err != nil || command.Flags().NArg() > 0 {
		t.Fatalf("%s: %v, %q", name, err, command.Flags().Args())
	}
	if err := a.settings.Load(nil); err != nil {
		t.Errorf("%s: %v", name, err)
	}
	if a.settings.LameDuck+a.settings.Drain >= grace {
		t.Errorf("%s: larder stops within %v and %v, and is killed after %v", name, a.settings.LameDuck, a.settings.Drain, grace)
	}
}

// TestDeployments tests what can be tested of the Compose file and the Kubernetes manifest without either: that larder takes the settings, that
// names refer to something, and that a process responds to the probes.
func TestDeployments(t *testing.T) {
	convert := func(from, to any) {
		data, err := yaml.Marshal(from)
		if err == nil {
			err = yaml.Unmarshal(data, to)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	documents, text := readDeployments(t, "compose.yaml")
	var compose struct {
		Services map[string]struct {
			Command []string
			Volumes []string
			Stop    string `yaml:"stop_grace_period"`
		}
		Volumes map[string]any
	}
	convert(documents[0], &compose)
	service := compose.Services["larder"]
	grace, err := time.ParseDuration(service.Stop)
	if err != nil {
		t.Fatal(err)
	}
	checkDeployed(t, "compose.yaml", service.Command, grace)
	for _, volume := range service.Volumes {
		if name, _, _ := strings.Cut(volume, ":"); len(compose.Volumes) != len(service.Volumes) || !slices.ContainsFunc(documents, func(d map[string]any) bool {
			_, ok := d["volumes"].(map[string]any)[name]
			return ok
		}) {
			t.Errorf("compose.yaml has no volume %s", name)
		}
	}

	documents, more := readDeployments(t, "kubernetes.yaml")
	kinds := map[string]int{}
	services := map[string]bool{}
	for _, d := range documents {
		kinds[d["kind"].(string)]++
		var named struct{ Metadata struct{ Name string } }
		convert(d, &named)
		services[named.Metadata.Name] = d["kind"] == "Service"
	}
	if kinds["StatefulSet"] != 1 || kinds["Service"] != 2 || kinds["PodDisruptionBudget"] != 1 {
		t.Errorf("kubernetes.yaml has %v", kinds)
	}
	var set struct {
		Spec struct {
			ServiceName string `yaml:"serviceName"`
			Template    struct {
				Spec struct {
					Grace      int `yaml:"terminationGracePeriodSeconds"`
					Containers []struct {
						Image string
						Args  []string
						Ports []struct {
							Name          string
							ContainerPort int `yaml:"containerPort"`
						}
						Startup, Liveness, Readiness probe
					}
				}
			}
		}
	}
	renamed := strings.NewReplacer("startupProbe:", "startup:", "livenessProbe:", "liveness:", "readinessProbe:", "readiness:")
	last := more[bytes.LastIndex(more, []byte("\n---\n"))+len("\n---\n"):]
	if err := yaml.Unmarshal([]byte(renamed.Replace(string(last))), &set); err != nil {
		t.Fatal(err)
	}
	container := set.Spec.Template.Spec.Containers[0]
	args := slices.Clone(container.Args)
	for i := range args {
		args[i] = strings.ReplaceAll(args[i], "$(POD_NAME)", "larder-0")
	}
	checkDeployed(t, "kubernetes.yaml", args, time.Duration(set.Spec.Template.Spec.Grace)*time.Second)
	if !services[set.Spec.ServiceName] || !slices.ContainsFunc(args, func(a string) bool { return strings.Contains(a, "https://larder-0."+set.Spec.ServiceName+":9443") }) {
		t.Errorf("the nodes are not reached by the service %q", set.Spec.ServiceName)
	}
	for _, port := range container.Ports {
		if !slices.ContainsFunc(args, func(a string) bool { return strings.HasSuffix(a, ":"+strconv.Itoa(port.ContainerPort)) }) {
			t.Errorf("nothing listens on the port %s, %d", port.Name, port.ContainerPort)
		}
	}
	for _, page := range []string{string(text), string(more)} { // versions are those of docs/operating.md
		if !strings.Contains(page, "larder:0.1.0\n") {
			t.Error("an image is of another version than docs/operating.md has")
		}
	}
	if testing.Short() {
		t.Skip("starts a process")
	}
	d := &drill{T: t, dir: t.TempDir(), environ: npmtest.New(t).Environ(t.TempDir())}
	d.write("catalogue/packages/d/demo.json", `{"name": "demo", "description": "A library.", "keywords": ["demo"], "repository": {"type": "git", "url": "https://git.example/demo.git"}}`)
	d.up("--listen", "127.0.0.1:0", "--private-listen", "127.0.0.1:0")
	out, err := d.command("larder status --json").Output()
	var status struct{ Process struct{ Private string } }
	if err := errors.Join(err, json.Unmarshal(out, &status)); err != nil {
		t.Fatal(err)
	}
	for _, p := range []probe{container.Startup, container.Liveness, container.Readiness} {
		waitFor(t, "the probe "+p.HTTPGet.Path, func() bool {
			response, err := http.Get("http://" + status.Process.Private + p.HTTPGet.Path)
			if err != nil {
				return false
			}
			response.Body.Close()
			return response.StatusCode == http.StatusOK && p.HTTPGet.Port == "private"
		})
	}
	d.stop()
}

// A probe is one of Kubernetes by HTTP.
type probe struct {
	HTTPGet struct{ Path, Port string } `yaml:"httpGet"`
}
