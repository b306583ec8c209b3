# Everything a contributor runs. Needs Go and make; what else a target needs it says.

GO      ?= go
BIN     := bin/larder
FUZZTIME ?= 20s
CRASHES ?= 500

# As the tests look for it.
CHROMIUM := $(or $(CHROME_PATH),$(shell command -v chromium || command -v chromium-browser || command -v google-chrome))

.PHONY: build run demonstration story test race lint fuzz audit bench bench-serve bench-headline crash clean

build: ## build bin/larder
	$(GO) build -trimpath -o $(BIN) ./cmd/larder

run: build ## serve the starter catalogue on http://127.0.0.1:8080 while it fills
	$(BIN) up

demonstration: build ## break in, and see it found (needs curl)
	LARDER=$(CURDIR)/$(BIN) sh docs/demonstration/run.sh

story: build ## from a fork of the catalogue to a tag in a page (needs git, curl and openssl)
	LARDER=$(CURDIR)/$(BIN) sh docs/story/run.sh

test: ## everything that can be tested here
	@test -n "$(CHROMIUM)" || echo "no Chromium found: the browser tests are skipped (apt-get install chromium, or set CHROME_PATH)"
	@test -z "$(CHROMIUM)" -o -e audit/node_modules/axe-core || echo "no axe-core found: the pages' accessibility is not tested (make audit fetches it)"
	$(GO) test ./...

race: ## the same but the browser tests, with the race detector (needs a C compiler)
	$(GO) test -race ./...

lint: ## formatting, vet, staticcheck
	@unformatted=$$(gofmt -l $$(git ls-files '*.go')); \
	if [ -n "$$unformatted" ]; then echo "not formatted; run gofmt -w on:"; echo "$$unformatted"; exit 1; fi
	$(GO) vet ./...
	$(GO) tool staticcheck ./...

fuzz: ## each fuzz target for FUZZTIME
	@set -e; for file in $$(git grep -l '^func Fuzz' -- '*_test.go'); do \
	  for target in $$(sed -n 's/^func \(Fuzz[A-Za-z0-9_]*\).*/\1/p' $$file); do \
	    echo "$$target in $$(dirname $$file)"; \
	    $(GO) test -run '^$$' -fuzz "^$$target\$$" -fuzzminimizetime 1x -fuzztime $(FUZZTIME) ./$$(dirname $$file); \
	  done; \
	done

audit: ## axe-core on every page, Lighthouse on two (needs Chromium, npm and Node 18 or newer)
	@test -n "$(CHROMIUM)" || { echo "make audit needs Chromium: apt-get install chromium, or set CHROME_PATH"; exit 1; }
	@command -v npm >/dev/null && node -e 'process.exit(Number(process.versions.node.split(".")[0] < 18))' 2>/dev/null || \
	  { echo "make audit needs Node 18 or newer, and npm; found: $$(node --version 2>&1)"; exit 1; }
	npm ci --prefix audit --ignore-scripts --no-audit --no-fund
	LARDER_TEST_AUDIT=1 $(GO) test -count 1 -v -run '^(TestAccessible|TestLighthouse)$$' ./browser

bench: build ## ratios: ingest against C commands (needs brotli and zopfli), look-ups at 7 million keys, serving
	$(GO) run ./bench/ingest -larder $(BIN) $(BENCH_INGEST)
	$(GO) test -run '^$$' -bench Lookup -timeout 1h ./kvstore
	$(GO) test -run '^$$' -bench Serving ./server

bench-serve: build ## against nginx and Caddy, as ratios (needs Linux with two cores, nginx with brotli_static, caddy, wrk and h2load)
	$(GO) run ./bench/serving -larder $(BIN) $(BENCH_SERVE)

bench-headline: build ## what share of cdnjs's traffic this machine serves (needs Linux)
	$(GO) run ./bench/serving -larder $(BIN) -headline $(BENCH_HEADLINE)

crash: ## kill the real process CRASHES times in the middle of ingests
	LARDER_TEST_CRASHES=$(CRASHES) $(GO) test -count 1 -timeout 2h -run TestCrash ./cmd/larder

clean:
	rm -rf bin
