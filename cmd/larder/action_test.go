package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/larder-cdn/larder/internal/testkit/npmtest"
)

// actionStep is one of the steps of an action.
type actionStep struct {
	Name, Shell, Run, Uses string
	Env                    map[string]string
}

func readAction(t *testing.T, name string) map[string]actionStep {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("..", "..", name))
	if err != nil {
		t.Fatal(err)
	}
	var action struct {
		Inputs map[string]struct{ Description, Default string }
		Runs   struct {
			Using string
			Steps []actionStep
		}
	}
	decoder := yaml.NewDecoder(bytes.NewReader(data))
	if err := decoder.Decode(&action); err != nil {
		t.Fatal(err)
	}
	if action.Runs.Using != "composite" {
		t.Errorf("it is %q", action.Runs.Using)
	}
	for name, input := range action.Inputs {
		if input.Description == "" {
			t.Errorf("the input %s says nothing of itself", name)
		}
	}
	steps := map[string]actionStep{}
	for _, step := range action.Runs.Steps {
		steps[step.Name] = step
		if step.Run != "" && step.Shell != "bash" {
			t.Errorf("%s: a composite action's step has to name its shell", step.Name)
		}
		if strings.Contains(step.Run, "${{") {
			t.Errorf("%s: what stands between ${{ and }} becomes part of the script, whatever its author meant", step.Name)
		}
		for variable, value := range step.Env {
			name, ok := strings.CutPrefix(strings.Trim(value, "${} "), "inputs.")
			if _, known := action.Inputs[name]; !ok || !known {
				t.Errorf("%s: %s is %q, which is no input", step.Name, variable, value)
			}
		}
	}
	return steps
}

// pullRequest is a catalogue in a git repository, with a change to it.
type pullRequest struct {
	t        *testing.T
	folder   string
	registry *npmtest.Registry
	bin      string
}

func newPullRequest(t *testing.T) *pullRequest {
	t.Helper()
	for _, program := range []string{"git", "bash"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skip("there is no " + program)
		}
	}
	s := &pullRequest{t: t, folder: t.TempDir(), bin: t.TempDir(), registry: npmtest.New(t)}
	// TestMain makes larder of the test program where that is its name.
	program, err := os.Executable()
	if err == nil {
		err = os.Symlink(program, filepath.Join(s.bin, "larder"))
	}
	if err != nil {
		t.Fatal(err)
	}
	// In a file of the lowest rank, so that a submission's .npmrc would go before it.
	if err := os.WriteFile(filepath.Join(s.bin, "npmrc"), []byte("registry="+s.registry.URL+"/\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s.git("init", "--quiet", "--initial-branch=main")
	return s
}

func (s *pullRequest) env() []string {
	return []string{"PATH=" + os.Getenv("PATH"), "HOME=" + s.bin, "GIT_CONFIG_NOSYSTEM=1",
		"GIT_AUTHOR_NAME=A", "GIT_AUTHOR_EMAIL=a@git.example", "GIT_COMMITTER_NAME=A", "GIT_COMMITTER_EMAIL=a@git.example",
		"npm_config_userconfig=" + filepath.Join(s.bin, "npmrc"), "npm_config_globalconfig=" + filepath.Join(s.bin, "none")}
}

func (s *pullRequest) git(args ...string) string {
	s.t.Helper()
	cmd := exec.Command("git", args...)
	cmd.Dir, cmd.Env = s.folder, s.env()
	out, err := cmd.CombinedOutput()
	if err != nil {
		s.t.Fatalf("git %v: %v\n%s", args, err, out)
	}
	return strings.TrimSpace(string(out))
}

func (s *pullRequest) write(name, text string) {
	s.t.Helper()
	at := filepath.Join(s.folder, filepath.FromSlash(name))
	if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
		s.t.Fatal(err)
	}
	if err := os.WriteFile(at, []byte(text), 0o644); err != nil {
		s.t.Fatal(err)
	}
}

// commit returns the commit's name.
func (s *pullRequest) commit() string {
	s.t.Helper()
	s.git("add", "--all")
	s.git("commit", "--quiet", "--message=change")
	return s.git("rev-parse", "HEAD")
}

// check runs the action's last step and returns what it prints and writes into the summary.
func (s *pullRequest) check(step actionStep, base string, more ...string) (output, summary string, ok bool) {
	s.t.Helper()
	script := filepath.Join(s.bin, "step.sh")
	if err := os.WriteFile(script, []byte(step.Run), 0o600); err != nil {
		s.t.Fatal(err)
	}
	file := filepath.Join(s.bin, "summary.md")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		s.t.Fatal(err)
	}
	cmd := exec.Command("bash", "--noprofile", "--norc", "-eo", "pipefail", script) // as GitHub does
	cmd.Dir = s.folder
	root, err := filepath.Abs(filepath.Join("..", ".."))
	if err != nil {
		s.t.Fatal(err)
	}
	cmd.Env = append(s.env(), "GITHUB_ACTIONS=true", "GITHUB_ACTION_PATH="+root, "GITHUB_STEP_SUMMARY="+file, "RUNNER_TEMP="+s.bin,
		"BASE="+base, "LARDER=", "OFFLINE=false", "LARDER_ASSET_BASE=https://cdn.example.com", "LARDER_DOWNLOADS_URL=", "GITHUB_TOKEN=")
	cmd.Env = append(cmd.Env, more...)
	out, err := cmd.CombinedOutput()
	if cmd.ProcessState == nil {
		s.t.Fatal(err)
	}
	data, readErr := os.ReadFile(file)
	if readErr != nil {
		s.t.Fatal(readErr)
	}
	return string(out), string(data), err == nil
}

const actionPackage = `{
  "name": "demo",
  "filename": "demo.min.js",
  "description": "A demonstration.",
  "keywords": [
    "demo"
  ],
  "license": "MIT",
  "repository": {
    "type": "git",
    "url": "https://git.example/larder/demo.git"
  },
  "autoupdate": {
    "source": "npm",
    "target": "demo",
    "fileMap": [
      {
        "basePath": "dist",
        "files": [
          "*.js"
        ]
      }
    ]
  }
}
`

func TestAction(t *testing.T) {
	t.Parallel()
	step := readAction(t, "action.yml")["Check"]
	s := newPullRequest(t)
	s.registry.Add("demo", "1.0.0", time.Date(2024, 5, 17, 8, 30, 0, 0, time.UTC), map[string]string{"dist/demo.js": "window.demo = true"})
	s.write("README.md", "A catalogue.")
	s.write("packages/o/old.json", strings.NewReplacer(`"name": "demo"`, `"name": "old"`, `"target": "demo"`, `"target": "old"`).Replace(actionPackage))
	base := s.commit()

	// Errors are annotations of their lines.
	s.write("packages/d/demo.json", strings.Replace(actionPackage, `"basePath"`, `"basepath"`, 1))
	s.commit()
	output, summary, ok := s.check(step, base)
	if want := "::error file=packages/d/demo.json,line=18,col=9,title=unknown-property::"; ok || !strings.Contains(output, want) || !strings.Contains(output, `did you mean "basePath"?`) {
		t.Errorf("a slip: %t\n%s", ok, output)
	}
	if summary != "" || strings.Contains(output, "old.json") {
		t.Errorf("summary %q, output\n%s", summary, output)
	}

	// Put right, the files are shown.
	s.write("packages/d/demo.json", actionPackage)
	good := s.commit()
	output, summary, ok = s.check(step, base)
	if !ok || strings.Contains(output, "::") {
		t.Errorf("good: %t\n%s", ok, output)
	}
	for _, want := range []string{"### `demo` `1.0.0`", "minified  demo.min.js\n", "18 B  demo.js\n",
		`<script src="https://cdn.example.com/ajax/libs/demo/1.0.0/demo.min.js" integrity="sha512-…" crossorigin="anonymous"></script>`} {
		if !strings.Contains(summary, want) {
			t.Errorf("the summary lacks %q:\n%s", want, summary)
		}
	}
	if !strings.Contains(output, "/ajax/libs/demo/1.0.0/demo.min.js") || strings.Contains(summary+output, "published package JSON") {
		t.Errorf("a new package:\n%s\n%s", output, summary)
	}
	if output, _, ok = s.check(step, base, "GITHUB_STEP_SUMMARY="); !ok || !strings.Contains(output, "Tags:") {
		t.Errorf("without a summary: %t\n%s", ok, output)
	}
	if output, summary, ok = s.check(step, base, "OFFLINE=true"); !ok || summary != "" || s.registry.Count("/demo") == 0 {
		t.Errorf("offline: %t %q\n%s", ok, summary, output)
	}

	// A change is compared with the version of the base branch.
	s.git("checkout", "--quiet", "-b", "change")
	s.write("packages/d/demo.json", strings.NewReplacer("A demonstration.", "Without scripts.", "*.js", "*.css", "demo.min.js", "demo.css").Replace(actionPackage))
	s.registry.Add("demo", "1.1.0", time.Date(2024, 6, 17, 8, 30, 0, 0, time.UTC), map[string]string{"dist/demo.js": "window.demo = 1", "dist/demo.css": "b { color: red }"})
	s.commit()
	output, summary, ok = s.check(step, good)
	for _, want := range []string{"- description: \"A demonstration.\"\n", "+ description: \"Without scripts.\"\n", "- autoupdate.fileMap[0].files: [\"*.js\"]\n",
		"Files of 1.1.0: 2 added, 2 removed.", "+ demo.css\n", "- demo.js\n", "- demo.min.js\n", `<link rel="stylesheet" href="https://cdn.example.com/ajax/libs/demo/1.1.0/demo.css"`} {
		if !strings.Contains(summary, want) || !strings.Contains(output, want) {
			t.Errorf("a change: the summary or the log lacks %q:\n%s\n%s", want, summary, output)
		}
	}
	if !ok || strings.Contains(output, "::") {
		t.Errorf("a change: %t\n%s", ok, output)
	}
	s.git("checkout", "--quiet", good)

	// Names that would be commands or options, links, and a registry of the submitter's choice.
	s.write("packages/d/--fix\n::error::x.json", actionPackage)
	s.write(".npmrc", "registry=http://127.0.0.1:9/\n")
	if err := os.Symlink("/etc/hostname", filepath.Join(s.folder, "packages", "d", "link.json")); err != nil {
		t.Fatal(err)
	}
	s.write("packages/d/$(touch pwned).json", `{"name": "`+"`touch pwned`"+`"}`)
	s.write("packages/d/run.sh", "touch pwned")
	s.write("packages/d/demo.json", strings.Replace(actionPackage, "A demonstration.", "Another.", 1))
	s.commit()
	asked := s.registry.Count("/demo")
	output, _, ok = s.check(step, good)
	if ok || strings.Contains(output, "\n::error::x") || strings.HasPrefix(output, "::error::x") || !strings.Contains(output, "link.json,line=1,col=1,title=unreadable") || !strings.Contains(output, "run.sh") {
		t.Errorf("hostile: %t\n%s", ok, output)
	}
	if _, err := os.Stat(filepath.Join(s.folder, "pwned")); err == nil {
		t.Error("something of the submission was run")
	}
	if s.registry.Count("/demo") == asked || strings.Contains(output, "127.0.0.1:9") {
		t.Errorf("the submitter's .npmrc was heeded:\n%s", output)
	}
	if got := s.git("status", "--porcelain"); got != "" {
		t.Errorf("files were changed: %s", got)
	}

	// Removing is no error, nor is a change elsewhere; what cannot be compared is.
	s.git("checkout", "--quiet", base)
	s.git("rm", "--quiet", "packages/o/old.json")
	s.write("README.md", "Changed.")
	s.commit()
	if output, _, ok := s.check(step, base); !ok || !strings.Contains(output, "::notice::1 files are removed") || !strings.Contains(output, "No package JSON file") {
		t.Errorf("removal: %t\n%s", ok, output)
	}
	for _, base := range []string{"", "0000000000000000000000000000000000000000", "--output=pwned"} {
		if output, _, ok := s.check(step, base); ok || !strings.Contains(output, "fetch-depth: 0") {
			t.Errorf("base %q: %t\n%s", base, ok, output)
		}
	}
}

// TestCatalogueTemplate holds the template to the rules that it teaches.
func TestCatalogueTemplate(t *testing.T) {
	var out, errs bytes.Buffer
	code := run(t.Context(), []string{"lint", "--offline", "--new", "../../docs/catalogue-template"}, nil, &out, &errs)
	if code != exitDone || !strings.Contains(out.String(), "0 errors in 0 files, 0 warnings") {
		t.Errorf("%d\n%s%s", code, out.String(), errs.String())
	}
	data, err := os.ReadFile("../../docs/catalogue-template/.github/workflows/check.yml")
	if err != nil {
		t.Fatal(err)
	}
	var workflow struct {
		On          map[string]any
		Permissions map[string]string
		Jobs        map[string]struct {
			Steps []struct{ Uses, Run string }
		}
	}
	if err := yaml.Unmarshal(data, &workflow); err != nil {
		t.Fatal(err)
	}
	if _, ok := workflow.On["pull_request"]; !ok || len(workflow.On) != 1 {
		t.Errorf("it runs on %v; with pull_request_target a submission could have secrets", workflow.On)
	}
	if len(workflow.Permissions) != 1 || workflow.Permissions["contents"] != "read" {
		t.Errorf("it may %v", workflow.Permissions)
	}
	steps := workflow.Jobs["packages"].Steps
	if len(steps) != 2 || !strings.HasPrefix(steps[1].Uses, "larder-cdn/larder@") {
		t.Errorf("its steps are %v", steps)
	}
}

// The action that verifies a page fails as larder does, and leaves what was found for other tools.
func TestVerifyAction(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("bash"); err != nil {
		t.Skip("there is no bash")
	}
	step, ok := readAction(t, "actions/verify/action.yml")["Verify"]
	if !ok {
		t.Fatal("it has no step that verifies")
	}
	for _, code := range []string{"0", "6", "9"} {
		dir := t.TempDir()
		larder := filepath.Join(dir, "larder")
		if err := writeProgram(larder, "#!/bin/bash\nprintf '%s ' \"$@\"; echo\nexit "+code+"\n"); err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command("bash", "-c", step.Run)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "PAGE=a page.html", "SERVER=https://cdn.example.com", "KEY=", "ROOT=cdn.example.com/root+1a", "KNOWN=", "OWN=/js/\n/css/", "MAX_AGE=24h", "OSV=osv.json", "SARIF=found.sarif", "LARDER="+larder, "RUNNER_TEMP="+dir)
		said, err := cmd.CombinedOutput()
		if (err == nil) != (code == "0") {
			t.Errorf("exit code %s: %v, %s", code, err, said)
		}
		want := "verify --server https://cdn.example.com --known-logs " + dir + "/larder-known-logs --root cdn.example.com/root+1a --own /js/ --own /css/ --max-age 24h --osv osv.json -- a page.html"
		if strings.TrimSpace(string(said)) != want {
			t.Errorf("it runs larder %s", said)
		}
		if found, err := os.ReadFile(filepath.Join(dir, "found.sarif")); err != nil || !strings.Contains(string(found), "--sarif -- a page.html") {
			t.Errorf("%s, %v", found, err)
		}
	}
}
