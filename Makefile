# Flashlane: everything a person types. `make help` lists it.
CARGO ?= cargo

.PHONY: help run test check bench interleave models soak full

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

run: ## The main job: pblk and a block SSD on the bundled trace
	$(CARGO) run --release

test: ## All tests; prints what was skipped and why
	$(CARGO) test --workspace --no-fail-fast --lib --bins --tests
	$(CARGO) test --workspace --doc --quiet
	$(CARGO) build --release
	sh tests/readme.sh
	sh tests/cuts.sh
	sh tests/report.sh
	$(MAKE) interleave models

check: ## Formatting, lints, docs
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets -- -D warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace --no-deps --quiet

bench: ## Speed of the stack on this machine, into bench/runs/
	sh bench/run.sh

# The crates that take their atomics from a checker are built once more; what they depend on is the same as for
# the other tests.
interleave: ## QBLK's whole target under shuttle, by seed (docs/TESTING.md)
	$(CARGO) test --workspace --features flashlane-testkit/shuttle \
		--test interleave $(ONLY) -- --nocapture --test-threads=2

models: ## Single structures under loom
	$(CARGO) test --workspace --features flashlane-ftl/loom --test models

soak: ## Seeded simulations with faults and power cuts until stopped (Ctrl-C)
	$(CARGO) run --release -- torture --target all --seconds 0

full: test soak ## Everything
