#!/bin/sh
# How a library comes to be served, from a fork of the catalogue to a tag in a page, with the real programs on the
# loopback. Needs git, curl and openssl; takes seconds.
#
#   make story
#
# GitHub and the npm registry are those of the project's tests (world). What each command prints is below the command. The
# exit code is 0 where everything came as it should.
set -eu
larder=${LARDER:-$PWD/bin/larder}
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
# check COMMIT CONCLUSION succeeds once the check of a commit has come to it.
check() { api GET "/repos/example/catalogue/commits/$1/check-runs" | tee check | grep -q "\"conclusion\":\"$2\""; }
# unescape undoes what JSON does to texts.
unescape() { awk '{ gsub(/\\n/, "\n"); gsub(/\\u003c/, "<"); gsub(/\\u003e/, ">"); gsub(/\\"/, "\""); print }'; }
# annotations prints what that check says beside the lines, and keeps it in the file lines.
annotations() {
	run=$(sed -n 's/.*"id":\([0-9]*\),"name":"larder review".*/\1/p' check)
	api GET "/repos/example/catalogue/check-runs/$run/annotations" | tr '{' '\n' | sed -n \
		's/^"path":"\([^"]*\)","start_line":\([0-9]*\),.*"annotation_level":"\([a-z]*\)","message":"\(.*\)","title":.*/\1:\2: \3: \4/p' | sed 's/\\"/"/g' >lines
	cat lines
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

say "Its operator serves what the catalogue has, and looks at pull requests. GitHub is given the two webhooks."
head -c 32 /dev/urandom | od -An -tx1 | tr -d ' \n' >hook-secret
"$larder" up --catalogue "$github/example/catalogue.git" --catalogue-interval 1h --github-url "$github" --hook-secret-file hook-secret \
	--listen 127.0.0.1:0 --private-listen off --ready-file ready-up >log-up 2>&1 &
pids="$pids $!"
wait_for "larder up" test -s ready-up
cdn=$(cat ready-up)
"$larder" review --review-repository example/catalogue --site-base "$cdn" --github-url "$github" --hook-secret-file hook-secret \
	--github-app 4711 --github-app-key-file world/app.pem --listen 127.0.0.1:0 --private-listen off --ready-file ready-review >log-review 2>&1 &
pids="$pids $!"
wait_for "larder review" test -s ready-review
api POST /repos/example/catalogue/hooks "{\"config\": {\"url\": \"$cdn/hooks/catalogue\", \"secret\": \"$(cat hook-secret)\"}, \"events\": [\"push\"]}" >/dev/null
api POST /repos/example/catalogue/hooks "{\"config\": {\"url\": \"$(cat ready-review)/hooks/review\", \"secret\": \"$(cat hook-secret)\"}, \"events\": [\"pull_request\", \"check_run\", \"check_suite\"]}" >/dev/null
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
wrong=$(git rev-parse HEAD)
cd ..
api POST /repos/example/catalogue/pulls '{"title": "Add demo-slider", "head": "contributor:demo-slider", "base": "main"}' >/dev/null

say "The check fails, and says beside the lines why."
wait_for "the check" check "$wrong" failure
annotations
grep -q '^packages/d/demo-slider.json:8: failure: .*did you mean "MIT"' lines
grep -q '^packages/d/demo-slider.json:17: failure: ' lines
grep -q '^packages/d/demo-slider.json:18: failure: .*did you mean "basePath"' lines

say "Mended. The next commit is looked at, and one mistake shows only now: the main file has another name."
cd fork
sed -i.bak 's/"mit"/"MIT"/; s/basepath/basePath/' packages/d/demo-slider.json
rm packages/d/*.bak
git commit -q -a -m "Mend it"
try git push -q origin demo-slider
half=$(git rev-parse HEAD)
cd ..
wait_for "the second check" check "$half" failure
annotations
grep -q '^packages/d/demo-slider.json:3: failure: .*did you mean "slider.js"' lines

cd fork
sed -i.bak 's/slide\.js/slider.js/' packages/d/demo-slider.json
rm packages/d/*.bak
git commit -q -a -m "Name the main file"
try git push -q origin demo-slider
right=$(git rev-parse HEAD)
cd ..
check "$wrong" failure # what is said of an older commit stays
wait_for "the third check" check "$right" success

say "It passes, and tells what is going to be published."
sed -n 's/.*"summary":"\(.*\)","title":.*/\1/p' check | unescape >summary
cat summary
promised=$(grep 'slider\.js"' summary | grep -o 'sha512-[A-Za-z0-9+/=]*')

say "It is merged. GitHub tells of the push, the package is enrolled, its releases are published."
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

say "A change to what is published is compared with it."
cd fork
try git checkout -q -b without-styles
sed -i.bak 's/@(js|css)/js/' packages/d/demo-slider.json
rm packages/d/*.bak
git commit -q -a -m "Leave the styles out"
try git push -q origin without-styles
change=$(git rev-parse HEAD)
cd ..
api POST /repos/example/catalogue/pulls '{"title": "Leave the styles out", "head": "contributor:without-styles", "base": "main"}' >/dev/null
wait_for "the check of the change" check "$change" success
grep -o 'Compared with `2.0.0`[^\\]*' check
grep -o '```diff[^`]*```' check | unescape
grep -q 'Compared with `2.0.0`, which is published: 0 files more, 2 files fewer, 0 files with other content.' check

if grep -e "$token" -e "$(cat hook-secret)" log-*; then
	echo "a secret is in a log" >&2
	exit 1
fi
