# The words of this project. Each sets up what it needs in .venv; `make` alone lists them.

SHELL := /bin/bash
.DEFAULT_GOAL := help
.PHONY: help demo check test test-all coverage soak format bench docs pins package wheel-test release clean

# The oldest Python that Stoker takes comes first: what it forbids, the others need not try.
PYTHON ?= $(shell scripts/find-python 3.11 3.12 3.13 3.14)
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.stamp

help: ## List these words
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(STAMP) ## Import feeds with a real cluster (ONCE=1 ends by itself, FEEDS="url url" takes those)
	@ONCE='$(ONCE)' FEEDS='$(FEEDS)' $(BIN)/python -m examples.feeds.demo

check: $(STAMP) ## Format, lint, types, import floors, dependencies and unit tests: under a minute
	@PYTHONDONTWRITEBYTECODE= $(BIN)/nox --parallel 2 --tags check

test: $(STAMP) ## Run all logic once, on PostgreSQL, SQLite, MariaDB and Redis: minutes (PART="unit postgres" runs those parts)
	@$(BIN)/python scripts/test $(if $(PART),--sessions $(PART),--tags test)

test-all: $(STAMP) ## Run every test on every database, broker and Django found: an hour
	@$(BIN)/python scripts/test --tags all

coverage: $(STAMP) ## Measure the branch coverage of make test, by folder (PART="unit postgres" runs those parts)
	@$(BIN)/python scripts/coverage $(PART)

soak: $(STAMP) ## Look for lost, doubled and early jobs under faults, for ever (BROKER=redis FAULTS=100 SEED=7 CLUSTERS=3)
	@BROKER='$(BROKER)' FAULTS='$(FAULTS)' SEED='$(SEED)' CLUSTERS='$(CLUSTERS)' REPORT='$(REPORT)' KEEP='$(KEEP)' SOURCE='$(SOURCE)' \
		$(BIN)/python -m tests.crash

format: $(STAMP) ## Put the code in shape and mend what can be mended by itself
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

bench: $(STAMP) ## Measure next to hand-written SQL (JOBS=20000 ROUNDS=5 DATABASES="postgres sqlite"; BROKERS=redis), or other queues (PEERS="pgqueuer procrastinate")
	@JOBS='$(JOBS)' ROUNDS='$(ROUNDS)' DATABASES='$(DATABASES)' $(BIN)/python -m benchmarks$(if $(PEERS),.peers $(PEERS),$(if $(BROKERS),.brokers)) $(ARGS)

docs: $(STAMP) ## Build the documentation in site/; a broken link fails
	@if [ -f scripts/reference ]; then $(BIN)/python scripts/reference; fi
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "The documentation is in site/index.html"

pins: ## Pin what pyproject.toml asks for in requirements/ (needs uv)
	@set -e; compile() { uv pip compile --quiet --universal --generate-hashes --no-annotate \
		--no-emit-index-url --no-emit-find-links --custom-compile-command "make pins" $(UPGRADE) "$$@"; }; \
	compile pyproject.toml --python-version 3.11 --extra backport --group dev \
		-c requirements/django-5.2.in -o requirements/dev.txt; \
	compile --python-version 3.11 --group mysql -o requirements/mysql.txt; \
	for django in 6.0 6.1; do compile pyproject.toml --python-version 3.12 --group test \
		-c requirements/django-$$django.in -o requirements/django-$$django.txt; done; \
	rm -f requirements/lowest.txt; `# uv would keep a version above a lowered bound` \
	compile pyproject.toml --python-version 3.11 --all-extras --no-emit-package mysqlclient --group test \
		--resolution lowest-direct --no-build -c requirements/django-5.2.in -o requirements/lowest.txt

wheel-test: $(STAMP) ## Run a job from the built wheel, as the README says, on every Python and Django found (PAIRS="3.12:5.2")
	@$(BIN)/python scripts/wheel-test $(PAIRS)

package: $(STAMP) ## Build the wheel and the source distribution in dist/, and check them
	@$(BIN)/python scripts/package dist

release: $(STAMP) ## Check, write version and changelog, build, commit and tag (VERSION=0.2.0, DRY=1 changes nothing)
	@$(BIN)/python scripts/release '$(VERSION)' $(if $(DRY),--dry-run)

clean: ## Remove everything that the other words made
	@if [ -x $(BIN)/python ]; then $(BIN)/python scripts/services stop; fi
	@rm -rf .venv* .nox .services site build dist reports .mypy_cache .ruff_cache .pytest_cache \
		.import_linter_cache .hypothesis .coverage .coverage.*
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

# ---------------------------------------------------------------------------------------------------

$(STAMP): pyproject.toml $(wildcard requirements/*.txt) scripts/setup
	@PYTHON='$(PYTHON)' scripts/setup $(VENV) requirements/dev.txt requirements/mysql.txt
