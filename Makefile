# Everything a developer runs. `make help` lists it; each target installs what it needs first.

VENV := .venv
PY := $(VENV)/bin/python
INSTALLED := $(VENV)/.installed
# The first interpreter that is new enough; name another one with PYTHON=.
PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && exit; \
	done; echo python3)
# Processes that run the tests at the same time.
WORKERS ?= 2
MAJORS ?= 15 16 17
# More arguments for the program behind a target: make test ARGS="tests/sql -k claim"
ARGS ?=

export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PIP_ROOT_USER_ACTION := ignore

# With ARGS a stage may select no test (pytest's exit 5); without, that is a failure.
PYTEST = $(PY) -m pytest
MAY_BE_EMPTY = $(if $(strip $(ARGS)),|| [ $$? -eq 5 ])

.DEFAULT_GOAL := help
.PHONY: help setup generate check-generated lint types test test-majors test-slow demo bench fmt \
	build clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo '  PYTHON=python3.12 chooses the interpreter, PGBIN=DIR the PostgreSQL binaries.'

setup: $(INSTALLED) ## virtual environment in .venv with all tools (skipped when current)

$(INSTALLED): requirements-dev.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
		echo "sql-jobs needs Python 3.11 or newer, but $(PYTHON) is:" \
			"$$($(PYTHON) --version 2>&1 | tail -n 1)." \
			"Name another one: make PYTHON=/path/to/python3" >&2; exit 1; }
	@$(PY) -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV) || { \
		echo "$(PYTHON) cannot make a virtual environment" \
			"(Debian and Ubuntu: apt-get install python3-venv)" >&2; exit 1; }
	$(PY) -m pip install --quiet -r requirements-dev.txt
	$(PY) -m pip install --quiet --no-build-isolation --no-deps -e .
	@touch $@

generate: setup ## compile queries/ and schema/ into generated/ and docs/sql.md
	PATH="$(CURDIR)/$(VENV)/bin:$$PATH" $(PY) -m codegen

check-generated: setup ## fail when generated/ or docs/sql.md is not what `make generate` writes
	PATH="$(CURDIR)/$(VENV)/bin:$$PATH" $(PY) -m codegen --check

lint: setup ## ruff, sqlfluff, squawk, import rules
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(VENV)/bin/sqlfluff lint --disable-progress-bar schema queries
	$(VENV)/bin/squawk schema/*.sql
	$(VENV)/bin/lint-imports

types: setup ## strict type check of jobs, jobs_sql, codegen and devkit
	$(PY) -m mypy

test: setup ## the default suite, on the embedded PostgreSQL 18 or PGBIN
	$(PYTEST) -n $(WORKERS) -m "not slow and not serial" $(ARGS) $(MAY_BE_EMPTY)
	$(PYTEST) -m "serial and not slow" $(ARGS) $(MAY_BE_EMPTY)

test-majors: setup ## SQL and schema tests on PostgreSQL 15, 16 and 17
	@set -e; for major in $(MAJORS); do \
		PGBIN=$$($(PY) -m devkit.majors $$major); export PGBIN; \
		echo "== PostgreSQL $$major"; \
		$(PYTEST) -q -n $(WORKERS) -m "majors and not slow and not serial" $(ARGS) $(MAY_BE_EMPTY); \
	done

test-slow: setup ## full-size soaks and scale tests
	$(PYTEST) -m slow $(ARGS) $(MAY_BE_EMPTY)

demo: setup ## the main job on real input: hash the standard library with two workers
	$(PY) -m examples.demo $(ARGS)

bench: setup ## beside the peers and the physical limit; ARGS="--quick --peers none" is short
	$(PY) -m bench $(ARGS)

fmt: setup ## format and fix what can be fixed
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .

build: setup ## wheel and sdist into dist/
	rm -rf dist
	$(PY) -m hatchling build

clean: ## remove what the targets above made, the virtual environment included
	rm -rf $(VENV) .pg-majors .bench .pytest_cache .mypy_cache .ruff_cache .import_linter_cache dist build
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
