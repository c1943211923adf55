# idem. `make` lists what there is.

GOLANGCI_LINT_VERSION := v2.15.0
BIN := $(CURDIR)/bin

# Modules of their own inside this one keep what only they need out of its go.mod.
NESTED := $(patsubst %/go.mod,%,$(wildcard */go.mod */*/go.mod */*/*/go.mod))

.DEFAULT_GOAL := help

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: test
test: ## all tests of all modules, with the race detector and in random order, and the few that go without it
	go test -race -shuffle=on -timeout 20m ./...
	go test -run 'Allocations|CollidingHashes|^TestStorm$$' ./...
	@set -e; for dir in $(filter-out faulttest,$(NESTED)); do echo "cd $$dir && go test"; (cd $$dir && go test -race -shuffle=on ./...); done
	cd faulttest && go test -count=1 -short ./...

.PHONY: faults
faults: ## all storages under faults, their answers checked for linearizability, and storages that are wrong on purpose (minutes)
	cd faulttest && go test -count=1 -timeout 20m ./...

.PHONY: faults-long
faults-long: ## the same with twenty times as many histories
	cd faulttest && go test -count=1 -timeout 6h ./... -long

.PHONY: short
short: ## the tests without their long runs
	go test -short -shuffle=on ./...

.PHONY: bench
bench: ## benchmarks of the root package, the backends, the janitor and HTTP, for benchstat
	go test -run '^$$' -bench . -benchmem . ./backend/... ./janitor ./idemhttp

.PHONY: ratios
ratios: ## each backend against its raw engine and a naive program, side by side (20 minutes, 4 GB of disk)
	go run ./internal/ratio -backend bolt
	go run ./internal/ratio -backend postgres
	go run ./internal/ratio -backend redis

.PHONY: fuzz
fuzz: ## 15 s for each fuzz target
	@set -e; for pkg in $$(go list ./...); do \
		for target in $$(go test -list '^Fuzz' $$pkg | grep '^Fuzz'); do \
			echo "$$pkg $$target"; go test -run '^$$' -fuzz "^$$target$$" -fuzztime 15s $$pkg; \
		done; \
	done

.PHONY: vet
vet: ## go vet
	go vet ./...
	@set -e; for dir in $(NESTED); do (cd $$dir && go vet ./...); done

.PHONY: lint
lint: $(BIN)/golangci-lint-$(GOLANGCI_LINT_VERSION) ## golangci-lint, formatting included
	$< run
	@set -e; for dir in $(NESTED); do (cd $$dir && $< run); done

$(BIN)/golangci-lint-$(GOLANGCI_LINT_VERSION):
	GOBIN=$(BIN) go install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(GOLANGCI_LINT_VERSION)
	mv $(BIN)/golangci-lint $@

.PHONY: tidy
tidy: ## check that go.mod and the formatting are as they should be
	go mod tidy -diff
	@set -e; for dir in $(NESTED); do (cd $$dir && go mod tidy -diff); done
	@test -z "$$(gofmt -l .)" || { echo "gofmt would change:"; gofmt -l .; exit 1; }
