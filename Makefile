# Each target creates the virtual environment if necessary. Later runs are quick.
# `make help` lists the targets.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
FRAMEWORKS := .venv-integrations

# pip settings from the environment (PIP_INDEX_URL, PIP_CERT, …) still apply.
export PIP_ROOT_USER_ACTION ?= ignore
export PIP_DISABLE_PIP_VERSION_CHECK ?= 1

.DEFAULT_GOAL := help
.PHONY: help run test test-all test-changed test-extended test-latest check bench docs lock clean

help: ## Say what can be made
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/make \1\t\2/p' Makefile | expand -t 20

run: $(VENV)/.runtime ## Show kakoi's main job: commands judged, confined, ended and recorded
	@scripts/setup run || echo "run: going on with the sandboxes that this machine has"
	@scripts/demo

test: $(VENV)/.dev ## Set up what the tests need, then prove every mechanism on every sandbox
	scripts/test --tier default

test-all: $(VENV)/.dev $(FRAMEWORKS)/.made ## The same, and what takes long: repetitions, big images, toolchains
	KAKOI_REQUIRE=integrations scripts/test --tier all

test-extended: $(VENV)/.dev $(FRAMEWORKS)/.made ## Only what `make test` leaves to `make test-all`
	KAKOI_REQUIRE=integrations scripts/test --tier extended

test-latest: $(VENV)/.dev ## Run the suites of the frameworks at their newest versions
	PYTHON=$(PYTHON) scripts/integrations latest $(FRAMEWORKS)-latest
	KAKOI_REQUIRE=integrations KAKOI_INTEGRATIONS=$(FRAMEWORKS)-latest scripts/test tests/integrations

test-changed: $(VENV)/.dev ## What the diff against main can reach, in about a minute
	$(BIN)/python -m tests.suite.changed

check: $(VENV)/.dev ## Lint, types, import direction, size budgets, documents
	@scripts/setup run
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy $(wildcard src tests bench examples conftest.py)
	$(BIN)/python -m pytest -q tests/test_architecture.py tests/test_docs.py tests/test_public_names.py tests/suite

bench: $(VENV)/.dev ## Run the benchmarks
	@set -e; for script in bench/[!_]*.py; do echo "== $$script"; $(BIN)/python "$$script"; done

docs: $(VENV)/.dev ## Build the site of the documents into build/site
	$(BIN)/mkdocs build --strict --quiet
	@echo "Open build/site/index.html"

lock: ## Recompile requirements/*.txt (UPGRADE=--upgrade for newer releases)
	PYTHON=$(PYTHON) scripts/lock $(UPGRADE)

clean: ## Remove the virtual environment and every cache
	rm -rf $(VENV) $(FRAMEWORKS) $(FRAMEWORKS)-latest .mypy_cache .pytest_cache .ruff_cache .hypothesis build dist
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +

# Each stamp is written last, so that an interrupted setup runs again.
$(VENV)/.made:
	@$(PYTHON) -c 'import sys; sys.exit("kakoi needs Python 3.11 or newer" if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv --clear $(VENV)
	@touch $@

$(VENV)/.runtime: requirements/runtime.txt requirements/build.txt pyproject.toml | $(VENV)/.made
	$(BIN)/pip install --quiet --require-hashes -r requirements/runtime.txt -r requirements/build.txt
	$(BIN)/pip install --quiet --no-deps --no-build-isolation -e .
	@touch $@

$(VENV)/.dev: requirements/dev.txt pyproject.toml | $(VENV)/.made
	$(BIN)/pip install --quiet --require-hashes -r requirements/dev.txt
	$(BIN)/pip install --quiet --no-deps --no-build-isolation -e .
	@touch $@

$(FRAMEWORKS)/.made: requirements/integrations.txt requirements/build.txt pyproject.toml
	PYTHON=$(PYTHON) scripts/integrations pinned $(FRAMEWORKS)
