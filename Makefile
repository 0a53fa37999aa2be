# Needs Python 3.11 or newer, git, make and a package index; everything else is installed into .venv.
#
#   make demo          build the overlay glm53-flash-gb10 on a small base, and show what came out
#   make test          lint, types, unit and integration tests
#   make fuzz          fuzz every reader of foreign input for SECONDS=30 each, and try more examples of each property
#   make bench         write docs/benchmarks.md and docs/verdicts.md
#   make docs          write the documents that are made from code
#   make clean         remove what the targets made

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
RUNTIME := $(VENV)/installed-runtime
DEV := $(VENV)/installed-dev
PIP := $(BIN)/python -m pip --quiet --disable-pip-version-check install
PYTEST := $(BIN)/python -m pytest
SERVICES := $(BIN)/python tests/services.py
# Overlay's own modules are compiled once, not for every process of the tests.
unexport PYTHONDONTWRITEBYTECODE
# Two workers suit the two cores of a small CI machine.
WORKERS ?= 2

.DEFAULT_GOAL := help
.PHONY: help demo test lint types unit integration fuzz bench docs clean

help:
	@sed -n 's/^#   //p' Makefile

demo: $(RUNTIME)
	@PATH="$(CURDIR)/$(BIN):$$PATH" sh docs/demo.sh

# One pytest run for both kinds of tests: its closing line is the last thing printed.
test: lint types
	$(SERVICES) $(PYTEST) -n $(WORKERS) --dist worksteal --durations=10 tests

lint: $(DEV)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-cache
	$(BIN)/zizmor --offline --quiet .github/workflows action.yml

types: $(DEV)
	$(BIN)/mypy --strict builder benchmarks patches/probes/support patches/evidence

unit: $(DEV)
	$(PYTEST) -n $(WORKERS) --dist worksteal tests/unit

integration: $(DEV)
	$(SERVICES) $(PYTEST) -n $(WORKERS) --dist worksteal --durations=10 tests/integration

# SEED says where to look: the second it is started at, or one to look there again.
SECONDS ?= 30
SEED ?= $(shell date +%s)
fuzz: $(DEV)
	OVERLAY_FUZZ_SECONDS=$(SECONDS) OVERLAY_FUZZ_SEED=$(SEED) $(PYTEST) tests/fuzz
	OVERLAY_EXAMPLES=20 $(PYTEST) -n $(WORKERS) -m hypothesis --hypothesis-seed=$(SEED) tests/unit

bench: $(DEV)
	OVERLAY_TEST_PRIVATE_ENGINE=1 $(SERVICES) $(BIN)/python -m benchmarks
	$(BIN)/python -m benchmarks.verdicts
	$(BIN)/python -m benchmarks.patches

docs: $(DEV)
	$(BIN)/python docs/generate.py

clean:
	rm -rf $(VENV) build dist .demo .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The demo needs only what users install; the tools for developing come on top. Both are renewed when
# pyproject.toml changes.
$(RUNTIME): pyproject.toml $(VENV)/bin/pip
	$(PIP) --editable .
	@touch $@

$(DEV): $(RUNTIME)
	$(PIP) --editable '.[dev]'
	@touch $@

$(VENV)/bin/pip:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	    { echo 'Python 3.11 or newer is needed: make PYTHON=python3.11 …' >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || $(MAKE) --no-print-directory ensurepip
	$(PYTHON) -m venv $(VENV)

# Debian keeps the part of Python that makes virtual environments in a package of its own.
.PHONY: ensurepip
ensurepip:
	@if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	    apt-get -qq update && apt-get -qq install --yes python3-venv >/dev/null; \
	else \
	    echo 'This Python cannot make virtual environments. On Debian: sudo apt-get install python3-venv' >&2; exit 1; \
	fi
