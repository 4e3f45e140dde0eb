# Each target sets up what it needs. `make help` lists them.
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

test-lab: ## the tests against a real vLLM on this machine's CPU; SPECDEC_LAB has its set-up
	@scripts/setup dev
	@scripts/debian-tools $(DEBIAN)
	$(SPECDEC_LAB)/setup
	SPECDEC_LAB=$(SPECDEC_LAB) $(BIN)/pytest -m lab $(ARGS)

check: lint types docs-check test ## what CI runs: lint, types, generated pages, tests

lint: ## ruff: rules and format
	@scripts/setup dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: ## mypy, strict
	@scripts/setup dev
	$(BIN)/mypy

format: ## format the code and apply ruff's fixes
	@scripts/setup dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: ## regenerate the generated pages
	@scripts/setup dev
	@scripts/docs

docs-check: docs ## the generated pages are up to date
	@git diff --exit-code -- docs alerts dashboards deploy || { echo "commit what 'make docs' changed"; exit 1; }

bench: ## the benchmarks of the README's table (5 minutes; run it on an idle machine)
	@scripts/setup dev
	@scripts/debian-tools nginx-light
	$(BIN)/python -m benchmarks.core
	$(BIN)/python -m benchmarks.middleware
	$(BIN)/python -m benchmarks.attribution
	$(BIN)/python -m benchmarks.proxy

accuracy: ## the inference's error on the recordings, and what each part of the method contributes
	@scripts/setup dev
	$(BIN)/python -m benchmarks.accuracy

screenshots: ## the page's pictures, taken by its tests
	@scripts/setup dev
	@scripts/debian-tools chromium
	$(BIN)/pytest -q tests/export/page --screenshots docs/screenshots

lock: ## update the lock files
	@scripts/setup dev
	@scripts/lock

build: ## the wheel and the source distribution, into dist/
	@scripts/setup dev
	$(BIN)/python -m hatchling build -d dist

clean: ## remove what the other targets created
	rm -rf .venv dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
