# windtunnel: `make repro` runs the pipeline, `make test` tests it; both set up what they need first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# Processes that test: a core stays free for servers and browsers, and more than three would want more memory than 16 GiB.
TESTERS ?= $(shell $(PYTHON) -c 'import os; print(max(2, min(3, (os.cpu_count() or 2) - 1)))')
# Slow and integration tests wait for servers, browsers and processes about half of their time.
SLOW_TESTERS ?= 3
export PATH := $(CURDIR)/$(BIN):$(PATH)
# DVC asks who uses it unless told; nothing here phones home.
export DVC_NO_ANALYTICS := 1
export MLFLOW_DISABLE_TELEMETRY := true

.PHONY: setup repro test test-fast lint format handbook ui lock clean help

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-10s %s\n", $$1, $$2}'

setup: $(STAMP) ## virtual environment with the pinned versions

$(STAMP): requirements.lock requirements-dev.lock requirements-nodeps.lock pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check torch==2.13.0 "setuptools>=77"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.lock -r requirements-dev.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps -r requirements-nodeps.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	touch $(STAMP)

repro: setup ## run the pipeline on params.yaml
	$(BIN)/windtunnel repair
	$(BIN)/windtunnel check
	$(BIN)/windtunnel repro
	$(BIN)/windtunnel show

test: setup lint ## lint, types, fast tests first, then the slow and the integration tests
	$(BIN)/python -m pytest -n $(TESTERS) --dist loadfile -m "not slow and not integration"
	$(BIN)/python -m pytest -n $(SLOW_TESTERS) --dist loadfile --no-loadscope-reorder -m "slow or integration"

test-fast: setup ## the fast tests alone
	$(BIN)/python -m pytest -n $(TESTERS) --dist loadfile -m "not slow and not integration"

lint: setup ## ruff, mypy, and that each storey imports only from below
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: setup ## let ruff fix what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

handbook: setup ## the handbook as a site in site/, broken links are errors
	$(BIN)/mkdocs build --strict

ui: setup ## the MLflow UI on the right store
	$(BIN)/windtunnel ui

lock: setup ## write what is installed into requirements.lock and requirements-dev.lock
	$(BIN)/python -m tools.lock

clean: ## everything that a run makes; the environment and the DVC cache stay
	find reports -mindepth 1 ! -name .gitignore -delete
	rm -rf .cache .pytest_cache .mypy_cache .ruff_cache .hypothesis
