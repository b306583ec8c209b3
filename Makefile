# Everything a contributor runs. Needs Go and make; what else a target needs it says.

GO      ?= go
BIN     := bin/larder
FUZZTIME ?= 20s
GOVULNCHECK ?= golang.org/x/vuln/cmd/govulncheck@v1.6.0
CRASHES ?= 500
SWEEP   ?= 1000
REPAIRS ?= 24
UPGRADES ?= 100
BACKLOG ?= 40000
COMMITS ?= 10000
SEED    ?= 1
HOURS   ?= 1
TIMEOUT ?= 30m
MINUTES ?= $(shell expr $(HOURS) '*' 60)

# One static file, whatever the system has; gin without a format that nothing here speaks; no symbols for debuggers, which the programs
# that are linked here leave out. The same flags for all that is compiled, so that it is compiled once.
export CGO_ENABLED ?= 0
export GOFLAGS := $(shell $(GO) env GOFLAGS) -tags=nomsgpack -trimpath -gcflags=all=-dwarf=false

# Tests that run JavaScript of npm in a Go interpreter need the tag oracle, since the interpreter takes long to compile.
ORACLE  := nomsgpack,oracle

# What git says that is built, for `larder version`: a tag, or a version as Go makes one for a commit without. Without git they
# are empty, and the program says what it knows otherwise.
COMMIT  := $(shell git rev-parse HEAD 2>/dev/null)
DATE    := $(if $(COMMIT),$(shell TZ=UTC git log -1 --date=format-local:%Y-%m-%dT%H:%M:%SZ --format=%cd))
VERSION ?= $(if $(COMMIT),$(or $(shell git describe --tags --exact-match --match 'v[0-9]*' 2>/dev/null),v0.0.0-$(shell TZ=UTC git log -1 --abbrev=12 --date=format-local:%Y%m%d%H%M%S --format=%cd-%h))$(shell git diff --quiet HEAD 2>/dev/null || echo +dirty))
STAMP   := $(foreach name,version commit date,-X github.com/larder-cdn/larder/internal/app.$(name)=$($(shell echo $(name) | tr a-z A-Z)))

# As the tests look for it.
CHROMIUM := $(or $(CHROME_PATH),$(shell command -v chromium || command -v chromium-browser || command -v google-chrome))

.PHONY: build budget dist dist-test alerts run pictures screenshots demonstration story test test-peers test-all agreement race lint vuln vuln-database fuzz audit graphs attack size bench sample bench-serve bench-headline bench-background bench-mirror crash follow sweep upgrade resources cluster rehearsal rooms mutants withdrawal fresh clean FORCE

build: ## build bin/larder
	$(GO) build -ldflags "-s -w $(STAMP)" -o $(BIN) ./cmd/larder

MAX_BYTES := 70000000

budget: build ## is bin/larder at most MAX_BYTES large? (a test counts the packages that are linked)
	@size=$$(wc -c <$(BIN)); echo "$(BIN) has $$size bytes of $(MAX_BYTES)"; \
	  test $$size -le $(MAX_BYTES) || { echo "docs/libraries.md says which library brings how much; remove what is too much"; exit 1; }

dist: ## what a release consists of, in dist/: the same bytes from the same commit, wherever it is made
	@test -n "$(COMMIT)" || { echo "make dist needs git, and a clone of the repository"; exit 1; }
	$(GO) vet -C tools/dist ./...
	$(GO) build -C tools/dist -o ../../bin/dist .
	SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct) bin/dist -out dist -version '$(VERSION)' -commit '$(COMMIT)' -ldflags '$(STAMP)'

dist-test: dist ## install, upgrade and remove what make dist has made, and make it again in another folder (needs Linux; dpkg and systemd-analyze where they are)
	RELEASE_FOLDER=$(CURDIR)/dist $(GO) test -C tools/dist -count 1 -timeout 1h -v .

run: build ## serve the starter catalogue on http://127.0.0.1:8080 while it fills
	$(BIN) up

comma := ,

# As docs/pictures has them: $(call picture,FILE,URL,OPTIONS).
picture = "$(CHROMIUM)" --headless --no-sandbox --hide-scrollbars --user-data-dir=$$(mktemp -d) --window-size=1000,760 $(3) --screenshot=docs/pictures/$(1) '$(2)'

pictures: ## the pictures of the README, of the larder that serves jquery on http://127.0.0.1:8080 and of rehearsal.html where that is (needs Chromium)
	$(call picture,library.png,http://127.0.0.1:8080/library/jquery,--blink-settings=preferredColorScheme=1)
	$(call picture,library-dark.png,http://127.0.0.1:8080/library/jquery,--blink-settings=preferredColorScheme=0)
	@test ! -e rehearsal.html || $(call picture,rehearsal.png,file://$(CURDIR)/rehearsal.html,--blink-settings=preferredColorScheme=1 --window-size=1000$(comma)1400)

SITE ?= http://127.0.0.1:8080

screenshots: ## every page at 390, 768 and 1280 pixels, light and dark, in bin/screenshots, with a sheet of each (needs Chromium, and `make run` in another terminal that has published the starter catalogue: SITE)
	LARDER_TEST_SCREENSHOTS=$(CURDIR)/bin/screenshots LARDER_TEST_SITE=$(SITE) $(GO) test -vet=off -count 1 -timeout 30m -v -run '^TestScreenshots$$' ./api/site/browsertest

demonstration: build ## break in, and see it found (needs curl)
	LARDER=$(CURDIR)/$(BIN) sh docs/demonstration/run.sh

story: build ## from a fork of the catalogue to a tag in a page (needs git, bash, curl and openssl)
	LARDER=$(CURDIR)/$(BIN) sh docs/story/run.sh

# lint runs vet over the same packages; here it would take as long as compiling them. Test programs without symbols are written and
# linked faster. Collecting garbage less often saves a tenth of the processor time, also of the processes that tests start. Twice as many
# packages as processors, since some wait.
test: ## every package, the real program and a browser, each with the short form of its long tests
	@test -n "$(CHROMIUM)" || echo "no Chromium found: the browser tests are skipped (apt-get install chromium, or set CHROME_PATH)"
	@command -v promtool >/dev/null || echo "no promtool found: the alerts are not tested (apt-get install prometheus)"
	@test -z "$(CHROMIUM)" -o -e api/site/browsertest/audit/node_modules/axe-core || echo "no axe-core found: the pages' accessibility is not tested (make audit fetches it)"
	GOGC=$${GOGC:-400} $(GO) test -vet=off -ldflags '-s -w' -p $$((2 * $$(getconf _NPROCESSORS_ONLN))) -timeout $(TIMEOUT) ./...

# These modules compile more code than Larder has, so they are not part of test. go test does not see that the program changed,
# so nothing is taken from its cache.
test-peers: build ## Larder with third-party programs: h2spec, an ACME server, an object store, the checks of Compose and Kubernetes, minimatch, npm's .npmrc; the benchmarks' own tests
	BUILT_LARDER=$(CURDIR)/$(BIN) $(GO) test -C tools/h2spec -vet=off -count 1 ./...
	$(GO) test -C tools/acme -vet=off -count 1 ./...
	BUILT_LARDER=$(CURDIR)/$(BIN) $(GO) test -C tools/versitygw -vet=off -count 1 ./...
	$(GO) test -C tools/deploy -vet=off -count 1 ./...
	BUILT_LARDER=$(CURDIR)/$(BIN) $(GO) test -C bench -vet=off -count 1 ./...
	$(GO) test -tags $(ORACLE) -vet=off ./packages/glob ./bot/npm

test-all: ## test and test-peers with long forms: kills, damage, partitions, model checking (hours; CRASHES, SWEEP, UPGRADES, COMMITS and BACKLOG shorten it)
	LARDER_TEST_WHOLE=1 $(MAKE) test TIMEOUT=3h
	$(MAKE) test-peers
	$(MAKE) crash
	$(MAKE) follow
	$(MAKE) sweep
	$(MAKE) upgrade
	$(MAKE) cluster
	$(MAKE) rooms
	$(MAKE) withdrawal
	$(MAKE) fresh

agreement: ## do lint, show-files and the bot agree over a folder of package JSONs, CATALOGUE? (asks the registry that npm is configured with)
	@test -n "$(CATALOGUE)" || { echo "name the folder: make agreement CATALOGUE=DIR"; exit 2; }
	LARDER_AGREEMENT=$(abspath $(CATALOGUE)) $(GO) test -count 1 -timeout 24h -run '^TestAgreementWithRegistry$$' -v ./bot

alerts: ## a real Prometheus fires and resolves each alert of docs/monitoring, and answers the dashboard's questions (needs Debian's package prometheus, or both of its programs in the PATH)
	LARDER_TEST_ALERTS=1 $(GO) test -count 1 -v -run '^(TestAlerts|TestAlertDrill|TestDashboardDrill)$$' ./internal/app ./cmd/larder

race: ## the same but the browser tests, with the race detector (needs a C compiler; RACE=-short leaves out what takes longest)
	CGO_ENABLED=1 $(GO) test -race -vet=off $(RACE) -timeout 40m ./...
	CGO_ENABLED=1 $(GO) test -C bench -race -vet=off $(RACE) ./...

# The glob's compiler is as complex as the rules that it follows, and is read beside them.
lint: ## formatting, vet, staticcheck, and no function too complex to follow
	@unformatted=$$(gofmt -l $$(git ls-files '*.go')); \
	if [ -n "$$unformatted" ]; then echo "not formatted; run gofmt -w on:"; echo "$$unformatted"; exit 1; fi
	$(GO) vet ./...
	$(GO) vet -tags $(ORACLE) ./packages/glob ./bot/npm
	$(GO) vet -C bench ./...
	$(GO) vet -C tools/h2spec ./...
	$(GO) vet -C tools/acme ./...
	$(GO) vet -C tools/versitygw ./...
	$(GO) vet -C tools/deploy ./...
	$(GO) tool -modfile=tools/go.mod staticcheck ./...
	$(GO) tool -modfile=tools/go.mod staticcheck -tags $(ORACLE) ./packages/glob ./bot/npm
	cd bench && $(GO) tool -modfile=../tools/go.mod staticcheck ./...
	$(GO) tool -modfile=tools/go.mod gocognit -over 30 -ignore '_test\.go|packages/glob/scan\.go' .
	cd tools/h2spec && $(GO) tool -modfile=../go.mod staticcheck ./...
	cd tools/versitygw && $(GO) tool -modfile=../go.mod staticcheck ./...

vuln: ## known vulnerabilities in code that Larder calls (needs the Go module proxy and the vulnerability database)
	$(GO) run $(GOVULNCHECK) ./...

vuln-database: ## can the vulnerability database be asked?
	@$(GO) run $(GOVULNCHECK) -mode query -format json stdlib@go1.26.0 >/dev/null

fuzz: ## each fuzz target for FUZZTIME
	@set -e; for file in $$(git grep -l '^func Fuzz' -- '*_test.go'); do \
	  for target in $$(sed -n 's/^func \(Fuzz[A-Za-z0-9_]*\).*/\1/p' $$file); do \
	    echo "$$target in $$(dirname $$file)"; \
	    $(GO) test -run '^$$' -fuzz "^$$target\$$" -tags $(ORACLE) -fuzzminimizetime 1x -fuzztime $(FUZZTIME) ./$$(dirname $$file); \
	  done; \
	done

audit: ## axe-core on every page, Lighthouse on two, every page at each width (needs Chromium, npm and Node 18 or newer)
	@test -n "$(CHROMIUM)" || { echo "make audit needs Chromium: apt-get install chromium, or set CHROME_PATH"; exit 1; }
	@command -v npm >/dev/null && node -e 'process.exit(Number(process.versions.node.split(".")[0] < 18))' 2>/dev/null || \
	  { echo "make audit needs Node 18 or newer, and npm; found: $$(node --version 2>&1)"; exit 1; }
	npm ci --prefix api/site/browsertest/audit --ignore-scripts --no-audit --no-fund
	LARDER_TEST_AUDIT=1 LARDER_TEST_WHOLE=1 $(GO) test -count 1 -v -run '^(TestAccessible|TestLighthouse|TestPages)$$' ./api/site/browsertest

graphs: ## does Chromium load the modules of 50 real packages by their recipes, and refuse each where one byte of one module is another? SEED chooses (needs Chromium, npm and the registry that it is configured with)
	@test -n "$(CHROMIUM)" || { echo "make graphs needs Chromium: apt-get install chromium, or set CHROME_PATH"; exit 1; }
	@command -v npm >/dev/null || { echo "make graphs needs npm"; exit 1; }
	mkdir -p bin/graphs && echo '{}' >bin/graphs/package.json
	npm install --prefix bin/graphs --ignore-scripts --no-audit --no-fund --no-save $$(cat api/site/browsertest/testdata/graphs.txt)
	LARDER_TEST_GRAPHS=$(CURDIR)/bin/graphs/node_modules LARDER_TEST_SEED=$(SEED) $(GO) test -count 1 -timeout 1h -v -run '^TestGraphs$$' ./api/site/browsertest

modules: ## does Chromium import the modules that are built from 107 npm packages and their dependencies, and are builds the same? (needs Chromium, Node, npm and the registry that it is configured with)
	@test -n "$(CHROMIUM)" || { echo "make modules needs Chromium: apt-get install chromium, or set CHROME_PATH"; exit 1; }
	@command -v npm >/dev/null || { echo "make modules needs npm"; exit 1; }
	mkdir -p bin/modules && echo '{}' >bin/modules/package.json
	npm install --prefix bin/modules --ignore-scripts --no-audit --no-fund --no-save $$(cat api/site/browsertest/testdata/modules.txt)
	LARDER_TEST_MODULES=$(CURDIR)/bin/modules/node_modules $(GO) test -count 1 -timeout 1h -v -run '^(TestModules|TestInstalled)$$' ./api/site/browsertest ./bot/worker

bin/background bin/ingest bin/sample bin/serving bin/attack bin/rehearsal bin/size: FORCE # so that they run here, and paths in their options are from here
	$(GO) build -C bench -o ../$@ ./$(@F)

bench: build bin/ingest ## ratios: ingest against C commands (needs brotli and zopfli), look-ups at 7 million keys, serving
	bin/ingest -larder $(BIN) $(BENCH_INGEST)
	$(GO) test -run '^$$' -bench Lookup -timeout 1h ./kvstore
	$(GO) test -run '^$$' -bench Serving ./server

sample: build bin/sample ## what filling costs: 300 packages of a CATALOGUE, chosen by a seed, from the registry that npm is configured with (needs Linux)
	@test -n "$(CATALOGUE)" || { echo "name the folder or archive: make sample CATALOGUE=DIR"; exit 2; }
	bin/sample -larder $(BIN) -catalogue '$(CATALOGUE)' $(SAMPLE)

bench-serve: build bin/serving ## against nginx and Caddy, as ratios (needs Linux with two cores, nginx with brotli_static, caddy, wrk and h2load)
	bin/serving -larder $(BIN) $(BENCH_SERVE)

bench-headline: build bin/serving ## what share of cdnjs's traffic this machine serves, with BENCH_HEADLINE=-h2 over HTTP/2 and TLS (needs Linux)
	bin/serving -larder $(BIN) -headline $(BENCH_HEADLINE)

bench-background: build bin/background ## latency of hot files while the same process publishes, recompresses and checks everything (needs Linux)
	bin/background -larder $(BIN) $(BENCH_BACKGROUND)

bench-mirror: ## a mirror's catch-up and rsync of the same files (skipped where it is not), by processor time; how far behind ten releases a second it is
	$(GO) test -run '^$$' -bench '^Benchmark(Mirror|Rsync)$$' -benchtime 3x -timeout 1h ./cmd/larder
	$(GO) test -run '^$$' -bench '^BenchmarkMirrorLag$$' -benchtime 600x -timeout 1h ./cmd/larder

size: build bin/size ## start, look-ups, search, pages, checks, backup and mirror over 7 million files, each with its bound (needs Linux, 20 GB of disk and an hour)
	bin/size -larder $(BIN) $(SIZE)

attack: build bin/attack ## attack the real program from one address, and measure what a client at another gets (needs Linux; nginx where it is)
	bin/attack -larder $(BIN) $(ATTACK)

bin/gateway: FORCE # an object store
	$(GO) test -C tools/versitygw -c -o ../../$@ .

rehearsal: build bin/rehearsal bin/gateway ## everything at once for HOURS, or MINUTES: nodes, mirror, fallback, room and proxy are killed, stopped, filled and attacked while clients compare every byte (needs Linux; nginx and root where they are)
	bin/rehearsal -larder $(BIN) -gateway bin/gateway -minutes $(MINUTES) $(REHEARSAL)

crash: ## kill the real process CRASHES times in the middle of ingests, of a full waiting room, and 50 times in the import of a tree
	LARDER_TEST_CRASHES=$(CRASHES) $(GO) test -count 1 -timeout 2h -run '^(TestCrash|TestCrashInATree|TestBackupCrash)$$' ./cmd/larder
	LARDER_TEST_CRASHES=$(CRASHES) $(GO) test -count 1 -timeout 2h -v -run '^TestKill$$' ./server/waitingroom

follow: ## kill a mirror CRASHES times in the middle of its catch-up
	LARDER_TEST_CRASHES=$(CRASHES) $(GO) test -count 1 -timeout 2h -run TestMirrorCrash ./cmd/larder

sweep: ## damage a store at SWEEP positions of each kind of file, repair it without a backup (REPAIRS of each of 42 kinds of damage), and lose the power SWEEP times, and CRASHES times while it is signed
	LARDER_TEST_SWEEP=$(SWEEP) $(GO) test -count 1 -timeout 2h -v -run '^(TestSweepDamage|TestFlippedBitInManifest|TestNoFalseAlarmAfterACrash)$$' ./kvstore
	LARDER_TEST_SWEEP=$(SWEEP) $(GO) test -count 1 -timeout 2h -v -run '^TestScanOfDamagedFiles$$' ./kvstore
	LARDER_TEST_SWEEP=$(REPAIRS) $(GO) test -count 1 -timeout 10h -v -run '^TestSweepRepair$$' ./logs/check
	LARDER_TEST_SWEEP=$(CRASHES) $(GO) test -count 1 -timeout 2h -v -run '^TestPowerFailures$$' ./logs/signing

upgrade: ## upgrade the real process UPGRADES times, and restart it on one socket as often, while 64 clients ask it, over each protocol; stop, reload and upgrade it under clients that take up to 5 s for each step
	LARDER_TEST_UPGRADES=$(UPGRADES) $(GO) test -count 1 -timeout 2h -v -run '^(TestUpgradeUnderLoad|TestSlowClients)$$' ./cmd/larder

resources: ## fill and serve in a control group of 512 MiB, and on a disk that others fill (needs Linux and root)
	LARDER_TEST_RESOURCES=1 $(GO) test -count 1 -timeout 1h -v -run '^(TestControlGroup|TestFullDisk)$$' ./cmd/larder

cluster: ## COMMITS by three processes on a gateway, all of which are killed and stopped; every interleaving of small histories; the object store that LARDER_TEST_S3_ENDPOINT and its like name
	LARDER_TEST_WHOLE=1 $(GO) test -count 1 -timeout 10m -v -run '^(TestCluster|TestClusterLost)$$' ./cmd/larder
	LARDER_TEST_WHOLE=1 LARDER_TEST_STORM=100 $(GO) test -count 1 -timeout 2h -v -run '^(TestEveryInterleaving|TestStorm)$$' ./logs/cluster
	LARDER_TEST_COMMITS=$(COMMITS) $(GO) test -C tools/versitygw -count 1 -timeout 10h -v .

rooms: ## waiting rooms: CRASHES kills under load, attackers for an hour of the room's time, 100,000 who wait, a million in virtual time, nodes that fail
	LARDER_TEST_CRASHES=$(CRASHES) $(GO) test -count 1 -timeout 2h -v -run '^TestKill$$' ./server/waitingroom
	LARDER_TEST_WHOLE=1 $(GO) test -count 1 -timeout 2h -v -run '^(TestAttackers|TestFlood)$$' ./server/waitingroom
	$(GO) test -run '^$$' -bench 'Crowd|Streams' -timeout 1h ./server/waitingroom
	LARDER_TEST_WHOLE=1 $(GO) test -count 1 -timeout 2h -v -run '^TestMillion$$' ./internal/testkit/simulate
	LARDER_TEST_WHOLE=1 $(GO) test -count 1 -timeout 2h -v -run '^TestModel$$' ./server/waitingroom
	LARDER_TEST_WHOLE=1 $(GO) test -count 1 -timeout 3h -v -run '^TestClusterRooms$$' ./cmd/larder
	LARDER_TEST_WHOLE=1 $(GO) test -count 1 -timeout 1h -v -run '^TestClusterAutoLimit$$' ./cmd/larder
	LARDER_TEST_WHOLE=1 $(GO) test -C tools/versitygw -count 1 -timeout 1h -v -run '^TestRoomPartitions$$' .

# A change that makes a loop endless is found when it has taken as long as 20 runs of the tests.
mutants: ## does a test notice when the code that decides in a waiting room is changed? (an hour and a half on two cores with other work)
	$(GO) build -C tools/gremlins -o ../../bin/gremlins github.com/go-gremlins/gremlins/cmd/gremlins
	bin/gremlins unleash --workers 1 --timeout-coefficient 20 --output-statuses lt ./server/waitingroom/queue

withdrawal: ## find a withdrawal that the server hides, in a log of 222,000 entries
	LARDER_TEST_WHOLE=1 $(GO) test -count 1 -v -run '^TestHiddenWithdrawal$$' ./logs/verify

fresh: ## from the word of a release to its files, beside BACKLOG releases that wait; what it costs to look at 4,300 packages for an hour
	LARDER_TEST_BACKLOG=$(BACKLOG) $(GO) test -count 1 -timeout 1h -v -run '^TestFresh$$' ./cmd/larder
	LARDER_TEST_PACKAGES=4300 $(GO) test -count 1 -timeout 1h -v -run '^TestCostOfLooking$$' ./bot

clean:
	rm -rf bin dist

FORCE:
