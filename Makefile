# Each target sets up what it needs by itself. `make help` lists them.
SHELL := /bin/bash
BIN := .venv/bin
SPECDEC_LAB ?= $(abspath ../shared/lab)
DEBIAN := prometheus prometheus-alertmanager chromium nginx-light golang-go golang-github-masterminds-sprig-dev golang-k8s-sigs-yaml-dev

.PHONY: help demo run test test-lab check lint types format docs docs-check bench accuracy screenshots lock build clean
.DEFAULT_GOAL := help

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 14

demo: ## the sidecar on a simulated vLLM with traffic; no GPU, no vLLM (http://127.0.0.1:9911/)
	@scripts/setup runtime
	@$(BIN)/specdec-sidecar demo $(ARGS)

run: ## the sidecar beside your own vLLM: make run SPECDEC_VLLM_URL=http://127.0.0.1:8000
	@scripts/setup runtime
	@$(BIN)/specdec-sidecar run

test: ## all tests but those against a real vLLM
	@scripts/setup dev
	@scripts/debian-tools $(DEBIAN)
	$(BIN)/pytest -m "not lab" $(ARGS)

test-lab: ## the tests against a real vLLM on this machine's CPU, where SPECDEC_LAB has its set-up
	@scripts/setup dev
	@scripts/debian-tools $(DEBIAN)
	$(SPECDEC_LAB)/setup
	SPECDEC_LAB=$(SPECDEC_LAB) $(BIN)/pytest -m lab $(ARGS)

check: lint types docs-check test ## what CI runs, less the real vLLM

lint: ## ruff: rules and format
	@scripts/setup dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: ## mypy, strict
	@scripts/setup dev
	$(BIN)/mypy

format: ## format the code and mend what ruff can
	@scripts/setup dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: ## regenerate the generated pages
	@scripts/setup dev
	@scripts/docs

docs-check: docs ## the generated pages are as the code would make them
	@git diff --exit-code -- docs alerts dashboards deploy || { echo "commit what 'make docs' changed"; exit 1; }

bench: ## the benchmarks that made the README's table (5 minutes; a quiet machine tells more)
	@scripts/setup dev
	@scripts/debian-tools nginx-light
	$(BIN)/python -m benchmarks.core
	$(BIN)/python -m benchmarks.middleware
	$(BIN)/python -m benchmarks.attribution
	$(BIN)/python -m benchmarks.proxy

accuracy: ## how far the inference is off on the recordings, and what each part of it is worth
	@scripts/setup dev
	$(BIN)/python -m benchmarks.accuracy

screenshots: ## the page's pictures, taken by its tests
	@scripts/setup dev
	@scripts/debian-tools chromium
	$(BIN)/pytest -q tests/export/page --screenshots docs/screenshots

lock: ## resolve the lock files anew
	@scripts/setup dev
	@scripts/lock

build: ## the wheel and the source distribution, into dist/
	@scripts/setup dev
	$(BIN)/python -m hatchling build -d dist

clean: ## remove what the other targets made
	rm -rf .venv dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
