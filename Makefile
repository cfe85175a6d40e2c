# The two commands of a newcomer: `make demo` and `make test`. `make` alone lists all targets.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.NOTPARALLEL:
MAKEFLAGS += --no-print-directory
# compiled modules are kept, whatever the image of a container says: tests start hundreds of processes
unexport PYTHONDONTWRITEBYTECODE
BIN := .venv/bin
ARGS ?=
BUILDER ?= podman
PYTEST = $(BIN)/pytest --durations=15 --durations-min=1
# the small Slurm of deploy/slurm-dev and the folder of all its files
SLURM_DEV ?= $(HOME)/.headrace/slurm-dev
SLURM = python3 deploy/slurm-dev/slurm_dev.py
# two more than there are cores, four at most: tests wait as much as they compute, and those that
# share an Airflow stay in one process; tests/support/scheduling.py
PROCESSES ?= $(shell cores=$$(nproc); echo $$((cores < 3 ? cores + 2 : 4)))
PARALLEL = -n $(PROCESSES) --dist loadfile
# what `make check` is content with
QUICK = -m "not nightly and not slow"
# tests of the engine: nothing beside it can be imported meanwhile
ENGINE = tests/unit tests/contract

.PHONY: help wheel demo test check setup system-packages static lint types imports unit contract satellites dags integration \
	chaos docs nightly gpu-check real-cuda-image real-export real-tensorflow real-nfs real-power real-systemd real-install site reference images mutants slurm-up slurm-down format pins clean

help: ## This list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | \
		sed -E 's/^([a-z-]+):.*## /\1\t/' | \
		while IFS=$$'\t' read -r name text; do printf '  make %-16s %s\n' "$$name" "$$text"; done

wheel: setup ## dist/headrace-….whl, to install elsewhere
	@exec $(BIN)/uv build --quiet --wheel -o dist .

demo: setup ## Airflow, the digits, training and evaluation, live in this terminal (ARGS=--once to end when done)
	@exec $(BIN)/headrace demo $(ARGS)

test: setup system-packages static ## Everything that must hold before a change goes in
	@$(PYTEST) $(PARALLEL) --without-satellites $(ENGINE)
	@exec $(PYTEST) $(PARALLEL) tests $(ENGINE:%=--ignore=%)

nightly: setup system-packages ## Benchmarks in a small size, and tests at scale: once a day, or after a change to what they measure
	@exec $(PYTEST) $(PARALLEL) -m "nightly" tests $(ARGS)

check: setup static ## What to run before each commit: all but what is slow and whole jobs, in minutes
	@$(PYTEST) $(PARALLEL) $(QUICK) --without-satellites $(ENGINE)
	@exec $(PYTEST) $(PARALLEL) $(QUICK) tests/architecture tests/satellites

setup: ## Virtual environment .venv with all that demo, tests and development need
	@scripts/setup.sh

system-packages: ## Programs outside Python that some tests use (installs them when run as root)
	@scripts/system-packages.sh

static: setup ## Style, types and contracts between the layers, all three at once
	@scripts/static.sh

lint: setup ## Style and common mistakes
	@scripts/lint.sh

types: setup ## Static types
	@$(BIN)/mypy

imports: setup ## Contracts between the layers
	@$(BIN)/lint-imports --no-logo

unit contract satellites dags integration chaos docs: setup
	@exec $(PYTEST) tests/$@ $(ARGS)

unit: ## Tests of single parts
contract: ## Tests that every backend passes
satellites: ## Tests of the packages beside the engine: EC2, queues, probes, foresight, pages
dags: ## Tests of the DAG files
integration: ## Tests with real leases, training and Airflow
chaos: ## Tests that kill processes of a running job
docs: ## Build the site, and test the documentation: its examples are run, its links and generated pages checked

gpu-check: ## Whether all that needs a GPU works on this one: a table, and build/gpu-check.json (8 minutes at most)
	@python=python3; $$python -c 'import headrace_bench, lightning' 2>/dev/null || \
		{ $(MAKE) --no-print-directory setup && python=$(BIN)/python; } || exit; \
	exec $$python -m headrace_bench gpu --output build/gpu-check.json $(ARGS)

real-nfs: setup system-packages ## Runs, kills and a suite on three machines with NFS 4.2 between them (as root; 30 minutes)
	@exec $(PYTEST) -s tests/real/nfs.py $(ARGS)

real-systemd: setup system-packages ## The unit of deploy/systemd on a booted Debian (as root, with mmdebstrap; 20 minutes)
	@exec $(PYTEST) -s tests/real/systemd.py $(ARGS)

real-install: ## dist/, installed without the checkout from pip's index, and the digits trained by it (3 GB, minutes)
	@exec scripts/real/install.sh

real-power: setup ## The digits on an emulated POWER (ARGS='--arch arm64'); as root, a root of 2 GB, minutes
	@exec scripts/real/power.sh $(ARGS)

real-export: setup ## Exports read by ONNX Runtime alone, Hugging Face and an MLflow server, in environments of uv (1 GB, 5 minutes)
	@exec $(PYTEST) -s tests/real/export.py $(ARGS)

mutants: setup ## Which random changes of the code no test notices (ARGS='--number 300 --seed 1'; hours)
	@exec $(BIN)/python scripts/mutants.py $(ARGS)

real-tensorflow: setup system-packages ## Keras on several workers and nodes, by an environment of its own (2 GB, 5 minutes)
	@exec scripts/real/tensorflow.sh $(ARGS)

slurm-up: system-packages ## A real Slurm of four nodes on this machine, in the folder SLURM_DEV (as root)
	@$(SLURM) up --folder $(SLURM_DEV)

slurm-down: ## End its jobs and daemons
	@$(SLURM) down --folder $(SLURM_DEV)

format: setup ## Format the Python files and correct what can be corrected
	@$(BIN)/ruff check --quiet --fix-only .
	@$(BIN)/ruff format --quiet .

docs: site

site: setup ## Build the documentation as a site, build/site/index.html; every warning is an error
	@scripts/site.sh

reference: setup ## Write the generated pages of docs/reference anew
	@$(BIN)/python docs/generate.py

real-cuda-image: setup ## An image with CUDA's PyTorch by Apptainer, without Docker Hub (FOLDER=; 15 GB, 40 minutes, root)
	@exec scripts/real/cuda-image.sh $(FOLDER)

images: setup ## Images of headrace and Airflow (BUILDER=docker|podman|buildah|ch-image|apptainer; 10 minutes)
	@exec $(BIN)/python deploy/containers/container_images.py build --builder $(BUILDER) deep control $(ARGS)

pins: setup ## Rewrite constraints.txt from what is installed in .venv
	@$(BIN)/python scripts/pins.py > constraints.txt.new
	@mv constraints.txt.new constraints.txt

clean: ## Remove the virtual environment, caches and build results
	@rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis build dist
	@find pipelines plugins dags docs tests -name __pycache__ -type d -prune -exec rm -rf {} +
