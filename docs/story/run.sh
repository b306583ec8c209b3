#!/bin/sh
# How a library comes to be served, from a fork of the catalogue to a tag in a page, with the real programs on the
# loopback. Needs git, bash, curl and openssl; takes seconds.
#
#   make story
#
# GitHub and the npm registry are those of the project's tests (world). There is no GitHub Actions runner: check_pull runs the
# script of the action as a runner does. What each command prints is below the command. The exit code is 0 if everything
# happened as expected.
set -eu
larder=${LARDER:-$PWD/bin/larder}
action=$(cd "$(dirname "$0")/../.." && pwd)
world=${WORLD:-}
dir=$(mktemp -d)
pids=
trap 'test -z "$pids" || kill $pids 2>/dev/null || true; wait; rm -rf "$dir"' EXIT
if [ -z "$world" ]; then
	go build -o "$dir/world-program" ./docs/demonstration
	world=$dir/world-program
fi
cd "$dir"
export HOME="$dir" XDG_CONFIG_HOME="$dir/config" GIT_CONFIG_NOSYSTEM=1
git config --global user.name 'A. Contributor'
git config --global user.email contributor@example.com
git config --global init.defaultBranch main

token=ghs_0123456789secret
say() { printf '\n# %s\n' "$*"; }
try() { printf '$ %s\n' "$*" | sed "s#$larder#larder#;s#$token#TOKEN#"; "$@"; }
# api METHOD PATH [JSON] asks GitHub.
api() { curl -sS --fail-with-body -X "$1" -H "Authorization: Bearer $token" "$github$2" ${3:+--data "$3"}; }
# wait_for WHAT COMMAND... tries until the command succeeds.
wait_for() {
	what=$1 tries=300
	shift
	until "$@" >answer 2>&1; do
		tries=$((tries - 1))
		if [ $tries = 0 ]; then echo "$what did not come; the last answer:" >&2; cat answer log-* >&2; exit 1; fi
		sleep 0.1
	done
}
# check_pull BRANCH EXIT-CODE runs the action on a pull request's commit. Its log is in the file log-action, the job's summary in
# the file summary.
check_pull() {
	rm -rf checkout runner && mkdir runner && : >summary
	git clone -q --branch "$1" "$github/contributor/catalogue.git" checkout 2>/dev/null
	git -C checkout fetch -q "$github/example/catalogue.git" main 2>/dev/null
	code=0
	(cd checkout && GITHUB_ACTIONS=true GITHUB_ACTION_PATH=$action GITHUB_STEP_SUMMARY=$dir/summary RUNNER_TEMP=$dir/runner LARDER=$larder OFFLINE=false \
		BASE=$(git rev-parse FETCH_HEAD) LARDER_ASSET_BASE=$cdn GITHUB_TOKEN='' bash "$action/actions/check.sh") >log-action 2>&1 || code=$?
	cat log-action
	test "$code" = "$2"
}

say "The world: npm has two releases of a slider, GitHub has a catalogue with another package."
mkdir -p releases/demo-slider@1.9.0/dist releases/demo-slider@2.0.0/dist world
echo '{"name": "demo-slider", "version": "1.9.0"}' >releases/demo-slider@1.9.0/package.json
echo '{"name": "demo-slider", "version": "2.0.0"}' >releases/demo-slider@2.0.0/package.json
echo 'window.slider = function () { return "slides, the old way" }' >releases/demo-slider@1.9.0/dist/slider.js
echo 'window.slider = function () { return "slides" }' >releases/demo-slider@2.0.0/dist/slider.js
echo '.slider { display: block }' >releases/demo-slider@2.0.0/dist/slider.css
"$world" world "$token" releases >log-world 2>&1 &
pids="$pids $!"
wait_for "the world" test -e world/environment
. world/environment

git clone -q "$github/example/catalogue.git" owner 2>/dev/null
mkdir -p owner/packages/o
cat >owner/packages/o/other.json <<'END'
{
  "name": "other",
  "filename": "other.js",
  "description": "Something else, whose files the operator imports.",
  "keywords": [
    "other"
  ],
  "license": "MIT",
  "repository": {
    "type": "git",
    "url": "https://git.example/owner/other.git"
  }
}
END
git -C owner add .
git -C owner commit -q -m "Begin"
try git -C owner push -q origin HEAD:main

say "Its operator serves what the catalogue has. GitHub sends pushes to a webhook."
head -c 32 /dev/urandom | od -An -tx1 | tr -d ' \n' >hook-secret
LARDER_GITHUB_URL="$github" LARDER_HOOK_SECRET_FILE=hook-secret "$larder" up --catalogue "$github/example/catalogue.git" \
	--listen 127.0.0.1:0 --private-listen off --ready-file ready-up >log-up 2>&1 &
pids="$pids $!"
wait_for "larder up" test -s ready-up
cdn=$(cat ready-up)
api POST /repos/example/catalogue/hooks "{\"config\": {\"url\": \"$cdn/hooks/catalogue\", \"secret\": \"$(cat hook-secret)\"}, \"events\": [\"push\"]}" >/dev/null
wait_for "the catalogue" curl -sS --fail "$cdn/libraries/other"

say "A contributor forks the catalogue, writes a package JSON with three mistakes, and opens a pull request."
api POST /repos/example/catalogue/forks '{"organization": "contributor"}' >/dev/null
try git clone -q "$github/contributor/catalogue.git" fork
cd fork
try git checkout -q -b demo-slider
mkdir packages/d
cat >packages/d/demo-slider.json <<'END'
{
  "name": "demo-slider",
  "filename": "slide.js",
  "description": "A small slider.",
  "keywords": [
    "slider"
  ],
  "license": "mit",
  "repository": {
    "type": "git",
    "url": "https://git.example/owner/slider.git"
  },
  "autoupdate": {
    "source": "npm",
    "target": "demo-slider",
    "fileMap": [
      {
        "basepath": "dist",
        "files": [
          "*.@(js|css)"
        ]
      }
    ]
  }
}
END
git add .
git commit -q -m "Add demo-slider"
try git push -q origin demo-slider
cd ..
api POST /repos/example/catalogue/pulls '{"title": "Add demo-slider", "head": "contributor:demo-slider", "base": "main"}' >/dev/null

say "The check fails, and annotates the lines."
check_pull demo-slider 1
grep -q '^::error file=packages/d/demo-slider.json,line=8,.*did you mean "MIT"' log-action
grep -q '^::error file=packages/d/demo-slider.json,line=17,' log-action
grep -q '^::error file=packages/d/demo-slider.json,line=18,.*did you mean "basePath"' log-action

say "Corrected. The next commit is checked, and one mistake is visible only now: the main file has another name."
cd fork
sed -i.bak 's/"mit"/"MIT"/; s/basepath/basePath/' packages/d/demo-slider.json
rm packages/d/*.bak
git commit -q -a -m "Correct it"
try git push -q origin demo-slider
cd ..
check_pull demo-slider 1
grep -q '^::error file=packages/d/demo-slider.json,line=3,.*did you mean "slider.js"' log-action

cd fork
sed -i.bak 's/slide\.js/slider.js/' packages/d/demo-slider.json
rm packages/d/*.bak
git commit -q -a -m "Name the main file"
try git push -q origin demo-slider
cd ..

say "It passes. The log and the summary have the files and the tags that are going to be published."
check_pull demo-slider 0
grep -q '^### `demo-slider` `2.0.0`$' summary
promised=$(grep 'slider\.js"' summary | grep -o 'sha512-[A-Za-z0-9+/=]*')

say "It is merged. GitHub notifies the webhook of the push, the package is registered, its releases are published."
api PUT /repos/example/catalogue/pulls/1/merge >/dev/null
wait_for "the release" curl -sS --fail "$cdn/ajax/libs/demo-slider/2.0.0/slider.js"
wait_for "the older release" curl -sS --fail "$cdn/ajax/libs/demo-slider/1.9.0/slider.js"
try "$larder" log list

say "Any author can put it into a page."
try "$larder" tag demo-slider slider.js >tag
cat tag
url=$(sed -n 's/.* src="\([^"]*\)".*/\1/p' tag)
integrity=$(sed -n 's/.* integrity="\([^"]*\)".*/\1/p' tag)
try curl -sS "$url"
curl -sS "$url" >served
cmp served releases/demo-slider@2.0.0/dist/slider.js
test "$integrity" = "sha512-$(openssl dgst -sha512 -binary <served | openssl base64 -A)"
test "$integrity" = "$promised"
echo "The bytes are upstream's, the tag's integrity is theirs, and it is the one that the check promised."

say "A change of the package JSON is compared with the published version."
cd fork
try git checkout -q -b without-styles
sed -i.bak 's/@(js|css)/js/' packages/d/demo-slider.json
rm packages/d/*.bak
git commit -q -a -m "Leave the styles out"
try git push -q origin without-styles
cd ..
api POST /repos/example/catalogue/pulls '{"title": "Leave the styles out", "head": "contributor:without-styles", "base": "main"}' >/dev/null
check_pull without-styles 0
grep -q 'Files of 2.0.0: 0 added, 2 removed.' summary
sed -n '/^```diff/,/^```$/p' summary
grep -q '^- autoupdate.fileMap\[0\].files: \["\*.@(js|css)"\]$' summary
grep -q '^- slider.css$' summary

if grep -e "$token" -e "$(cat hook-secret)" log-*; then
	echo "a secret is in a log" >&2
	exit 1
fi
