# Flashlane: everything a person types. `make help` lists it.
CARGO ?= cargo

.PHONY: help run test check bench interleave models soak full

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

run: ## The main job: pblk and a block SSD on the bundled trace
	$(CARGO) run --release

test: ## All tests; prints what was skipped and why
	$(CARGO) test --workspace --no-fail-fast
	$(CARGO) build --release
	sh tests/readme.sh
	sh tests/report.sh
	$(MAKE) interleave models

check: ## Formatting, lints, docs
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets -- -D warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace --no-deps --quiet

bench: ## Speed of the stack on this machine, into bench/runs/
	sh bench/run.sh

# Builds of their own, beside the others: every crate takes its atomics from the checker.
TARGET_DIR ?= $(or $(CARGO_TARGET_DIR),target)
# Without line tables, which a schedule's seed replaces: a third of the build.
UNTRACED = CARGO_PROFILE_DEV_DEBUG=0

interleave: ## QBLK's whole target under shuttle, by seed (docs/TESTING.md)
	$(UNTRACED) RUSTFLAGS="--cfg flashlane_shuttle" $(CARGO) test --target-dir $(TARGET_DIR)/shuttle \
		-p flashlane-testkit --test interleave $(ONLY) -- --nocapture --test-threads=2

models: ## Single structures under loom
	$(UNTRACED) RUSTFLAGS="--cfg flashlane_loom" $(CARGO) test --target-dir $(TARGET_DIR)/loom \
		-p flashlane-rt --test models
	$(UNTRACED) RUSTFLAGS="--cfg flashlane_loom" $(CARGO) test --target-dir $(TARGET_DIR)/loom \
		-p flashlane-ftl --lib models::

soak: ## Seeded simulations with faults and power cuts until stopped (Ctrl-C)
	$(CARGO) run --release -- torture --target all --seconds 0

full: test soak ## Everything
