# `make` alone lists the verbs. Each sets up what it needs first (.ci/setup).
PYTHON ?= python3
BIN := .venv/bin
BENCHES := $(filter-out __init__ compare,$(notdir $(basename $(wildcard bench/*.py))))

export PYTHON
.DEFAULT_GOAL := help
.PHONY: bench clean help lint quickstart requirements setup test test-real test-unit

help: ## list these verbs
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s%s\n", $$1, $$2 }' $(MAKEFILE_LIST)

quickstart: ## build the first example into build/quickstart
	@.ci/setup venv debian
	$(BIN)/spark-build recipes/quickstart.yaml

test: ## all tests: the unit tests, and those with real tools and the network
	@.ci/setup venv debian engines emulation
	$(BIN)/pytest --real all --durations 10

test-real: ## the tests with real tools and the network alone
	@.ci/setup venv debian engines emulation
	$(BIN)/pytest --real all --durations 10 tests/real

test-unit: setup ## the unit tests alone: seconds, no network
	$(BIN)/pytest tests/unit

lint: setup ## style, format, types and layers
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: setup ## every bench, side by side with what it is compared to
	@for bench in $(BENCHES); do $(BIN)/python -m bench.$$bench || exit; done

requirements: setup ## pin the newest versions that pyproject.toml and requirements.in allow
	$(BIN)/uv pip compile --no-config --quiet --universal --python-version 3.11 --upgrade \
	  --generate-hashes --no-header --only-binary :all: \
	  pyproject.toml .ci/requirements.in --output-file .ci/requirements.txt

setup:
	@.ci/setup venv

clean: ## remove .venv, build/ and every tool's cache
	rm -rf .venv build dist .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
