// Package deploy checks the files of docs/deploy with the code that Docker Compose and Kubernetes check them with.
package deploy

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/compose-spec/compose-go/v2/loader"
	"github.com/compose-spec/compose-go/v2/types"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"k8s.io/kubernetes/pkg/apis/apps"
	_ "k8s.io/kubernetes/pkg/apis/apps/install"
	appsvalidation "k8s.io/kubernetes/pkg/apis/apps/validation"
	"k8s.io/kubernetes/pkg/apis/core"
	_ "k8s.io/kubernetes/pkg/apis/core/install"
	corev1conversion "k8s.io/kubernetes/pkg/apis/core/v1"
	corevalidation "k8s.io/kubernetes/pkg/apis/core/validation"
	"k8s.io/kubernetes/pkg/apis/policy"
	_ "k8s.io/kubernetes/pkg/apis/policy/install"
	policyvalidation "k8s.io/kubernetes/pkg/apis/policy/validation"
	"k8s.io/pod-security-admission/api"
	securitypolicy "k8s.io/pod-security-admission/policy"
)

// read returns a file of docs/deploy, with one text replaced by another, both empty for none.
func read(t *testing.T, name, old, replacement string) []byte {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("../../docs/deploy", name))
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Contains(data, []byte(old)) {
		t.Fatalf("%s has no %q", name, old)
	}
	if old == "" {
		return data
	}
	return bytes.Replace(data, []byte(old), []byte(replacement), 1)
}

// check checks that err is nil if want is empty, and that it contains want otherwise.
func check(t *testing.T, name string, err error, want string) {
	t.Helper()
	if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
		t.Errorf("%s: %v; want %q", name, err, want)
	}
}

// TestCompose loads the Compose file as Docker Compose does, with its schema. Changed files show that mistakes are found.
func TestCompose(t *testing.T) {
	for name, test := range map[string]struct{ old, replacement, want string }{
		"as it is":        {},
		"unknown key":     {"cap_drop:", "cap_dropped:", "cap_dropped"},
		"unknown volume":  {"volumes:\n  larder: {}", "volumes:\n  other: {}", "undefined volume"},
		"no duration":     {"stop_grace_period: 30s", "stop_grace_period: soon", "stop_grace_period"},
		"no memory limit": {"mem_limit: 2g", "mem_limit: [2g]", "mem_limit"},
	} {
		_, err := loader.LoadWithContext(t.Context(), types.ConfigDetails{
			WorkingDir:  t.TempDir(),
			ConfigFiles: []types.ConfigFile{{Filename: "compose.yaml", Content: read(t, "compose.yaml", test.old, test.replacement)}},
		}, func(o *loader.Options) { o.SetProjectName("larder", true) })
		check(t, name, err, test.want)
	}
}

// TestKubernetes decodes the manifest strictly, sets the defaults and validates it as an API server does, and evaluates its pods by the Pod
// Security Standard "restricted". Changed files show that mistakes are found.
func TestKubernetes(t *testing.T) {
	for name, test := range map[string]struct{ old, replacement, want string }{
		"as it is":           {},
		"unknown field":      {"podManagementPolicy:", "podManagement:", `unknown field "spec.podManagement"`},
		"unknown volume":     {"{name: keys, mountPath", "{name: key, mountPath", "Not found"},
		"another selector":   {"selector: {matchLabels: {app: larder}}\n  template", "selector: {matchLabels: {app: other}}\n  template", "does not match template"},
		"unknown port":       {"livenessProbe: {httpGet: {path: /livez, port: private}", "livenessProbe: {httpGet: {path: /livez, port: Private_1}", "port"},
		"request over limit": {"memory: 1Gi}", "memory: 4Gi}", "must be less than or equal to memory limit"},
		"root":               {"runAsNonRoot: true", "runAsNonRoot: false", "runAsNonRoot"},
		"capabilities":       {"capabilities: {drop: [ALL]}", "capabilities: {}", "unrestricted capabilities"},
	} {
		check(t, name, validate(read(t, "kubernetes.yaml", test.old, test.replacement)), test.want)
	}
}

// validate returns what is wrong with a manifest, nil for nothing.
func validate(manifest []byte) error {
	decoder := serializer.NewCodecFactory(legacyscheme.Scheme, serializer.EnableStrict).UniversalDecoder()
	documents := bytes.Split(manifest, []byte("\n---\n"))
	if len(documents) != 4 {
		return fmt.Errorf("%d documents", len(documents))
	}
	for _, document := range documents {
		decoded, _, err := decoder.Decode(document, nil, nil)
		if err != nil {
			return err
		}
		var mistakes field.ErrorList
		switch object := decoded.(type) {
		case *core.Service:
			object.Namespace = "default"
			if object.Spec.ClusterIP != "" {
				object.Spec.ClusterIPs = []string{object.Spec.ClusterIP} // the API server sets it before it validates
			}
			mistakes = corevalidation.ValidateServiceCreate(object)
		case *policy.PodDisruptionBudget:
			object.Namespace = "default"
			mistakes = policyvalidation.ValidatePodDisruptionBudget(object, policyvalidation.PodDisruptionBudgetValidationOptions{})
		case *apps.StatefulSet:
			object.Namespace = "default"
			mistakes = appsvalidation.ValidateStatefulSet(object, appsvalidation.StatefulSetValidationOptions{}, corevalidation.PodValidationOptions{})
			if err := evaluatePod(&object.Spec.Template); err != nil {
				return err
			}
		default:
			return fmt.Errorf("a %T", decoded)
		}
		if err := mistakes.ToAggregate(); err != nil {
			return err
		}
	}
	return nil
}

// evaluatePod returns why a namespace that enforces the Pod Security Standard "restricted" refuses the pods, nil if it accepts them.
func evaluatePod(template *core.PodTemplateSpec) error {
	var spec corev1.PodSpec
	if err := corev1conversion.Convert_core_PodSpec_To_v1_PodSpec(&template.Spec, &spec, nil); err != nil {
		return err
	}
	evaluator, err := securitypolicy.NewEvaluator(securitypolicy.DefaultChecks(), nil)
	if err != nil {
		return err
	}
	restricted := api.LevelVersion{Level: api.LevelRestricted, Version: api.LatestVersion()}
	for _, result := range evaluator.EvaluatePod(restricted, &template.ObjectMeta, &spec) {
		if !result.Allowed {
			return fmt.Errorf("restricted: %s: %s", result.ForbiddenReason, result.ForbiddenDetail)
		}
	}
	return nil
}
