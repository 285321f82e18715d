# Flashlane: everything a person types. `make help` lists it.
CARGO ?= cargo

.PHONY: help run test check bench soak full

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

run: ## The main job: pblk and a block SSD on the bundled trace
	$(CARGO) run --release

test: ## All tests; prints what was skipped and why
	$(CARGO) test --workspace --no-fail-fast
	$(CARGO) build --release
	sh tests/readme.sh
	sh tests/report.sh

check: ## Formatting, lints, docs
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets -- -D warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace --no-deps --quiet

bench: ## Speed of the stack on this machine, into bench/runs/
	sh bench/run.sh

soak: ## Seeded simulations with faults and power cuts until stopped (Ctrl-C)
	$(CARGO) run --release -- torture --target all --seconds 0

full: test soak ## Everything
