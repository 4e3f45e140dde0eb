# Each target sets up what it needs by itself. `make help` lists them.
SHELL := /bin/bash
BIN := .venv/bin
JOBS ?= $(shell echo $$((2 * $$(nproc))))  # tests wait for servers half of their time
TARGETS ?= exposition packets settings
DEBIAN := chromium curl openssl prometheus prometheus-alertmanager  # what tests run, and Debian's minimum lacks

# Without bytecode files, each pytest process and each command that a test starts compiles every module anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo run test test-slow test-all lab test-lab test-schedulers mutations check lint types format docs docs-check bench fuzz screenshots lock build publish-dry-run clean
.DEFAULT_GOAL := help

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 14

demo: ## the sidecar on a simulated vLLM with traffic; no GPU, no vLLM (http://127.0.0.1:9911/)
	@scripts/setup runtime
	@$(BIN)/specdec-sidecar demo $(ARGS)

run: ## the sidecar beside your own vLLM: make run SPECDEC_VLLM_URL=http://127.0.0.1:8000
	@scripts/setup runtime
	@$(BIN)/specdec-sidecar run

test: ## run the tests of everything that must hold (three to five minutes)
	@scripts/setup dev
	@scripts/debian-tools $(DEBIAN)
	$(BIN)/pytest -n $(JOBS) --dist worksteal -m "not lab and not slow and not measured" $(ARGS)

test-slow: ## run the slow variants: scrape intervals, mutations of the rules, fuzzing, rendered charts
	@scripts/setup dev
	@scripts/debian-tools $(DEBIAN)
	$(BIN)/pytest -n $(JOBS) --dist worksteal -m "slow and not lab and not measured" $(ARGS)

test-all: test test-slow ## run all tests except those against a real vLLM

lab: ## install a real vLLM with small models, 4 to 9 GB: make lab [VERSION=0.20.2] [DEVICE=cuda]; lab/README.md
	@lab/setup

test-lab: lab ## run the tests against the lab's vLLM, on this machine's CPU (20 minutes)
	@scripts/setup dev
	@scripts/debian-tools $(DEBIAN)
	$(BIN)/pytest -n 2 --dist loadfile -m "lab and not measured" $(ARGS)  # those of health mostly wait

test-schedulers: lab ## run the plug-in's tests on vLLM's own schedulers, 0.16 to 0.33, without a server
	@scripts/setup dev
	@lab/classes
	RELEASES=all $(BIN)/pytest -m lab tests/lab/test_lab_schedulers.py $(ARGS)

mutations: ## change every rule in every place, one at a time, and list what no scene notices (slow)
	@scripts/setup dev
	@scripts/debian-tools prometheus
	$(BIN)/python -m tests.alerts.alert_mutations

check: lint types docs-check test-all ## run what CI runs, except the lab

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

docs: ## regenerate what is generated: pages, dashboards, manifests
	@scripts/setup dev
	@scripts/docs

docs-check: docs ## fail if a generated page is out of date
	@git diff --exit-code -- docs alerts dashboards deploy sidecar/alerting/texts.py || { echo "commit what 'make docs' changed"; exit 1; }

bench: ## run the benchmarks of docs/cost.md (7 minutes, best on a quiet machine; the plug-in's needs a lab)
	@scripts/setup dev
	$(BIN)/python -m benchmarks.core
	$(BIN)/python -m benchmarks.plugin

fuzz: ## fuzz the parsers, from the corpus and into it: make fuzz TARGETS=packets ARGS=-max_total_time=600
	@scripts/setup dev
	@for target in $(TARGETS); do $(BIN)/python -m tests.fuzz $$target -max_total_time=60 $(ARGS) || failed=1; done; [ -z "$$failed" ]

screenshots: ## take the README's pictures of the page, from the demo
	@scripts/setup dev
	@scripts/debian-tools chromium
	$(BIN)/pytest -q -m slow tests/export/page/test_demo.py --screenshots docs/screenshots

lock: ## update the lock files
	@scripts/setup dev
	@scripts/lock

build: ## build the wheel and the source distribution into dist/
	@scripts/setup dev
	$(BIN)/python -m hatchling build -d dist

publish-dry-run: ## build wheel, sdist, chart and image, and check them as far as that is possible without uploading
	@scripts/publish --dry-run $(ARGS)

clean: ## remove everything that the other targets created, except the lab
	rm -rf .venv dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
