# Flashlane: everything a person types. `make help` lists it.
CARGO ?= cargo
TARGET = $(or $(CARGO_TARGET_DIR),target)
# What this machine can't run (tests/skip.sh).
export FLASHLANE_SKIPPED = $(if $(filter /%,$(TARGET)),,$(CURDIR)/)$(TARGET)/skipped
# What one stage of the tests takes is a row of a file, where that is asked for (tests/stage.sh).
STAGE = sh tests/stage.sh

.PHONY: help run test test-all test-program test-checkers check bench instructions instructions-record interleave interleave-long models miri miri-rings mutants mutants-quick minutes serve-long file-systems ghosts posix posix-tools xfstests databases damaged sequences preset-cuts soak soak-threads figures full

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

run: ## The quick start: pblk, QBLK and a block SSD on used drives; a recorded trace
	$(CARGO) run --release

# Many tests wait for servers or for the end of a process: twice as many as there are cores use them better. The scripts
# run the program that was built for the tests, with its assertions: a release build would take as long as they do.
test: ## All tests; prints what was skipped and why
	sh tests/skip.sh begin
	sh tests/failures.sh $(MAKE) --no-print-directory test-all
	sh tests/skip.sh list

test-all:
	$(STAGE) build $(CARGO) test --workspace --no-run --lib --bins --tests
	RUST_TEST_THREADS=$$(( $$(nproc) * 2 )) $(STAGE) tests $(CARGO) test --workspace --no-fail-fast --lib --bins --tests
	$(STAGE) doc-tests $(CARGO) test --workspace --doc --quiet
	$(STAGE) build-program $(CARGO) build --workspace --bins --example mutants --example ghosts --example instructions
	cp $(TARGET)/debug/flashlane $(TARGET)/flashlane-tested
	FLASHLANE=$(TARGET)/flashlane-tested $(STAGE) program-and-checkers \
		$(MAKE) -j2 --output-sync=target --no-print-directory test-program test-checkers

# The two halves of the rest run side by side: one core would idle beside a half alone.
test-program:
	sh tests/readme.sh
	sh tests/report.sh
	sh tests/results.sh
	sh tests/figures.sh
	sh tests/serve.sh
	sh tests/fuse.sh
	sh tests/parafs.sh
	$(MAKE) posix-tools
	sh tests/posix.sh
	sh tests/ghosts.sh
	sh tests/vhost.sh

test-checkers:
	$(MAKE) instructions
	$(MAKE) miri
	$(MAKE) interleave
	$(MAKE) models
	$(MAKE) mutants-quick
	sh tests/cuts.sh

check: ## Formatting, lints, docs
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets -- -D warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace --no-deps --quiet

bench: ## Speed of the stack on this machine, into bench/runs/
	sh bench/run.sh

# In the build of the tests. With WHY the rows are kept, also those that take more: that is the reason, and they are the
# base from then on.
instructions: ## Instructions of small fixed runs against bench/history.csv; WHY="..." keeps them as the new base
	sh bench/instructions.sh $(if $(WHY),record "$(WHY)",check)

instructions-record: ## The same, and adds the rows to bench/history.csv
	sh bench/instructions.sh record

# The crates that take their atomics from a checker are built once more; what they depend on is the same as for
# the other tests.
interleave: ## QBLK's whole target under shuttle, by seed (docs/TESTING.md)
	$(CARGO) test --workspace --features flashlane-testkit/shuttle \
		--test interleave $(ONLY) -- --nocapture --test-threads=2

interleave-long: ## The same, SCHEDULE_SECONDS (600) for each of its tests, from FLASHLANE_SEED (0)
	FLASHLANE_SECONDS=$(or $(SCHEDULE_SECONDS),600) $(MAKE) interleave

# They are small: not optimized they are there, and done, sooner.
models: ## Single structures under loom
	CARGO_PROFILE_DEV_OPT_LEVEL=0 $(CARGO) test --workspace --features flashlane-ftl/loom --test models

# Results are kept in target/mutants.tsv, for this very program: the next call goes on where this one stopped.
mutants: ## Break every safety rule: what catches it, and how soon
	$(CARGO) build --profile mutants -p flashlane --features mutants
	$(CARGO) build --workspace --example mutants
	$(TARGET)/debug/examples/mutants $(MUTANTS)

mutants-quick: ## The mutants that are caught within 2 seconds (tests/mutants-quick)
	$(CARGO) build --workspace --bins --example mutants
	$(TARGET)/debug/examples/mutants --bin $(TARGET)/debug/flashlane --quick tests/mutants-quick

# Memory that cores share without references to it. Miri is a component of a nightly toolchain: where there is one it
# is added, but no toolchain is installed for it.
miri: ## Slab, ring, map, what gathers from them, memory of futures under Miri, where there is a nightly toolchain
	@if ! $(CARGO) +nightly --version >/dev/null 2>&1; then \
		sh tests/skip.sh note miri "no nightly toolchain here (rustup toolchain install nightly)"; \
	elif ! rustup component add --toolchain nightly miri rust-src; then \
		sh tests/skip.sh note miri "the nightly toolchain has no Miri, and none can be added"; \
	else \
		$(CARGO) +nightly miri test -p flashlane-rt --lib pooled && \
		$(CARGO) +nightly miri test -p flashlane-media --lib payload && \
		$(CARGO) +nightly miri test -p flashlane-ftl --lib -- \
			$(MIRI); \
	fi

# Several rings take Miri minutes.
MIRI = log::slab log::ring:: log::map log::sections
miri-rings: ## The same of several rings: minutes
	$(MAKE) miri MIRI=log::rings

SECONDS ?= 3600
soak-threads: ## pblk, QBLK and borrow on 2 to 8 real threads, with faults, for SECONDS (3600)
	$(CARGO) run --release -p flashlane-testkit --example threads -- --seconds $(SECONDS)

DAMAGE ?= 0..20000
damaged: ## Images damaged in DAMAGE (0..20000) ways, under the device and under pblk and the block SSD
	FLASHLANE_DAMAGE=$(DAMAGE) $(CARGO) test --workspace --test ssd damage
	FLASHLANE_DAMAGE=$(DAMAGE) $(CARGO) test --workspace --test damaged_images

sequences: ## ParaFS: every sequence of OPERATIONS (3) file operations, cut at every command: minutes
	FLASHLANE_OPERATIONS=$(or $(OPERATIONS),3) FLASHLANE_JOBS=$$(nproc) \
		$(CARGO) test --release -p flashlane-parafs --test fs every:: -- --nocapture

CUTS ?= 500
preset-cuts: ## ParaFS on every preset, each cut CUTS (500) times: minutes
	FLASHLANE_SEED=0..$(CUTS) \
		$(CARGO) test --release -p flashlane-parafs --test fs pairs::every_preset -- --nocapture

soak: damaged sequences ## Damaged images, then seeded simulations with faults and power cuts until stopped (Ctrl-C)
	$(CARGO) run --release -- torture --target all --seconds 0

minutes: ## Commands of the README and the cookbook that take minutes; a guest of QEMU
	$(CARGO) build --release
	sh tests/readme.sh minutes
	sh tests/vhost.sh qemu

serve-long: ## A served target: 200 kills, and a crowd for SERVE_SECONDS (300)
	FLASHLANE_SERVE_KILLS=200 FLASHLANE_KILL_SEED=$$(date +%s) FLASHLANE_SERVE_SECONDS=$(or $(SERVE_SECONDS),300) \
		$(CARGO) test --release -p flashlane --test cli nbd:: -- --nocapture --test-threads=1

file-systems: ## ext4, XFS and Btrfs on every type of target, through FUSE and loop devices, with kills: minutes
	$(CARGO) build --release
	sh tests/fuse.sh all

ghosts: ## iDiscard under this kernel's ext4, ROUNDS (5000) rounds with kills: ten minutes
	$(CARGO) build --release
	$(CARGO) build --workspace --example ghosts
	ROUNDS=$(or $(ROUNDS),5000) SEED=$${SEED:-$$(date +%s)} sh tests/ghosts.sh

posix: posix-tools ## ParaFS as a directory: pjdfstest, and fsx with OPS (a million) operations, from their crates: minutes
	$(CARGO) build --release
	OPS=$(or $(OPS),1000000) sh tests/posix.sh

# Without a registry they are skipped, by name. Their own builds are small, and are not the project's.
posix-tools:
	-[ -x $(TARGET)/tools/bin/pjdfstest ] || CARGO_TARGET_DIR=$(TARGET)/tools/build \
		$(CARGO) install --quiet --root $(TARGET)/tools fsx@0.3.2 pjdfstest@0.2.2

xfstests: ## xfstests on ParaFS, from the built checkout that XFSTESTS names: hours
	$(CARGO) build --release
	sh tests/xfstests.sh

f2fs: ## What F2FS of a kernel writes per call, beside the policy of that name: minutes
	$(CARGO) build --release
	sh tests/f2fs.sh

databases: ## SQLite, RocksDB and MariaDB on a served target, and on ParaFS, killed under them: minutes
	$(CARGO) build --release
	sh tests/databases.sh

figures: ## Every figure at the paper's own sizes, into target/figures-full: hours
	$(CARGO) run --release -- reproduce all --full --report $(TARGET)/figures-full

full: test minutes figures serve-long file-systems ghosts posix xfstests databases f2fs miri-rings interleave-long preset-cuts soak ## Everything
