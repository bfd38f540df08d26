# Everything a person does with this checkout; `make help` lists it.
# Needed beforehand: Python 3.11 or newer, a Rust toolchain (cargo, rustfmt, clippy), make.
# Nothing is written outside the checkout but the package caches of pip and cargo.

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL:
.SUFFIXES:

PYTHON ?= python3
JOBS ?= 2
VENV := .venv
BIN := $(VENV)/bin
EXTENSION := pydownpour/_core.abi3.so
# What the stub says and Python 3.11 cannot show; later versions do not need it.
STUBTEST_FLAGS := --allowlist tests/unit/test_core_stub_allowlist.txt --ignore-unused-allowlist
PYTHON_CODE := pydownpour tests examples docs requirements .ci

# One interpreter for every build of the binding, or cargo compiles PyO3 again for each.
export VIRTUAL_ENV := $(CURDIR)/$(VENV)
export PYO3_PYTHON := $(CURDIR)/$(BIN)/python
export CARGO_TARGET_DIR := $(CURDIR)/target
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Processes share the cores already; BLAS threads on top would fight over them.
export OPENBLAS_NUM_THREADS ?= 1

CARGO_TEST := cargo test --profile checked --locked --package downpour
STUBTEST := $(BIN)/python -m mypy.stubtest --ignore-unused-allowlist \
	--allowlist tests/unit/test_core_stub_allowlist.txt
PYTEST := $(BIN)/python -m pytest
HOST = $(shell rustc -vV | sed -n 's/^host: //p')
RUST_SOURCES := $(shell find rust -name '*.rs' -o -name 'Cargo.toml') Cargo.toml Cargo.lock

##@ Two commands to begin with

.PHONY: demo
demo: $(EXTENSION) ## train on real handwritten digits: 2 shards, 4 replicas, real processes
	$(BIN)/pydownpour demo

.PHONY: test
test: test-rust test-python ## everything but the slow parts, Rust and Python

##@ Checks

.PHONY: lint
lint: lint-rust lint-python ## formatting, clippy, ruff, mypy --strict, the stub against the core

.PHONY: lint-rust
lint-rust: $(VENV)/.installed
	cargo fmt --all --check
	cargo clippy --workspace --all-targets --locked --quiet -- -D warnings

.PHONY: lint-python
lint-python: $(EXTENSION)
	$(BIN)/ruff format --check $(PYTHON_CODE)
	$(BIN)/ruff check $(PYTHON_CODE)
	$(BIN)/mypy
	$(STUBTEST) pydownpour._core

.PHONY: format
format: $(VENV)/.installed ## rewrite the code in the project's format
	cargo fmt --all
	$(BIN)/ruff check --fix --quiet $(PYTHON_CODE) || true
	$(BIN)/ruff format $(PYTHON_CODE)

.PHONY: test-rust
test-rust: $(VENV)/.installed ## the pure crate's tests
	$(CARGO_TEST)

.PHONY: test-python
test-python: $(EXTENSION) ## unit, property, e2e, examples and the short chaos tests
	$(PYTEST) -n $(JOBS) --dist worksteal -m "not slow and not bench and not attack"

##@ Slow checks

.PHONY: slow
slow: $(EXTENSION) ## the Python tests that `make test` leaves out
	$(PYTEST) -n $(JOBS) -m slow || test $$? -eq 5 # 5: there are none

.PHONY: chaos
chaos: $(EXTENSION) ## real processes killed, stopped and starved, short and long forms
	PYDOWNPOUR_CHAOS=long $(PYTEST) -m chaos

.PHONY: attack
attack: $(EXTENSION) ## hostile peers against a running job; four times: PYDOWNPOUR_ATTACK=long
	$(PYTEST) -m attack tests/attack

.PHONY: soak
soak: $(EXTENSION) ## the same for MINUTES=10, four replicas, one over a slow link; prints memory
	$(BIN)/python -m tests.attack.soak --minutes $${MINUTES:-10}

.PHONY: loom
loom: ## every interleaving of the store's claim, publish and reclaim protocol
	RUSTFLAGS="--cfg loom" LOOM_MAX_PREEMPTIONS=$${LOOM_MAX_PREEMPTIONS:-2} \
	cargo test --profile checked --locked --package downpour --target-dir target/loom --test 'loom_*'

.PHONY: sanitize
sanitize: ## the pure crate's tests under AddressSanitizer, its store tests under ThreadSanitizer
	RUSTC_BOOTSTRAP=1 RUSTFLAGS="-Zsanitizer=address" \
	cargo test --locked --package downpour --target $(HOST) --target-dir target/asan \
	--lib --tests
	@test -d "$$(rustc --print sysroot)/lib/rustlib/src" || \
	{ echo "ThreadSanitizer has to see the standard library: rustup component add rust-src"; exit 1; }
	RUSTC_BOOTSTRAP=1 RUSTFLAGS="-Zsanitizer=thread -Cunsafe-allow-abi-mismatch=sanitizer" \
	cargo test -Zbuild-std --locked --package downpour --target $(HOST) --target-dir target/tsan \
	--test 'store_*'

.PHONY: seeds
seeds: $(EXTENSION) ## simulated worlds under every fault plan, new ones: SEEDS=1000 FIRST=200
	DOWNPOUR_SEEDS=$${SEEDS:-1000} DOWNPOUR_SEED_FIRST=$${FIRST:-200} \
	$(PYTEST) -n $(JOBS) --dist worksteal tests/simulation/test_seeds.py -k test_seeds

.PHONY: policies
policies: $(EXTENSION) ## every policy in a swarm of faults, both oracles: SEEDS=200 FIRST=0
	DOWNPOUR_POLICY_SEEDS=$${SEEDS:-200} DOWNPOUR_POLICY_FIRST=$${FIRST:-0} \
	$(PYTEST) -n $(JOBS) --dist worksteal --timeout 1200 tests/simulation/test_policies.py -k swarm

.PHONY: fuzz-short
fuzz-short: $(EXTENSION) ## the property tests of both languages with many fresh random cases
	PROPTEST_CASES=$${PROPTEST_CASES:-20000} $(CARGO_TEST)
	HYPOTHESIS_PROFILE=night $(PYTEST) -n $(JOBS) --timeout 3600 tests/property

##@ Figures

.PHONY: bench
bench: $(EXTENSION) ## ratios against plain sockets, loops and arrays, both sides in one run
	$(BIN)/python -m pydownpour.bench

.PHONY: experiments
experiments: $(EXTENSION) ## what the papers claim, at small scale: tables, charts, one page
	$(BIN)/python examples/experiments/run.py $(EXPERIMENTS)

##@ Building

.PHONY: build
build: $(EXTENSION) ## .venv with everything in it, and the extension

$(VENV)/.installed: requirements/lock.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	{ echo "pydownpour needs Python 3.11 or newer; try: make PYTHON=python3.12 ..." >&2; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --requirement requirements/lock.txt
	touch $@

# Deleted first: an old extension must never stand in for one that failed to build.
$(EXTENSION): $(VENV)/.installed pyproject.toml $(RUST_SOURCES)
	@command -v cargo > /dev/null || { echo "a Rust toolchain (cargo) is needed" >&2; exit 1; }
	rm -f pydownpour/_core*.so
	PIP_QUIET=1 $(BIN)/maturin develop --release --locked --quiet
	touch $@

.PHONY: wheel
wheel: $(VENV)/.installed ## dist/: source distribution, and the stripped wheel built from it
	rm -rf dist
	$(BIN)/maturin build --profile dist --locked --sdist --out dist

.PHONY: lock
lock: ## renew requirements/lock.txt from pyproject.toml
	$(PYTHON) requirements/lock.py

.PHONY: clean
clean: ## remove all that was built or installed
	rm -rf $(VENV) target dist pydownpour/_core*.so .mypy_cache .ruff_cache .pytest_cache
	rm -rf .hypothesis

.PHONY: help
help: ## this list
	@awk 'BEGIN { FS = ":.*## " } \
	/^##@/ { printf "\n%s\n", substr($$0, 5) } \
	/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))
