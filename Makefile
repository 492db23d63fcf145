# Every task of the repository; `make` alone lists them. Only the package index is contacted, through pip's own settings.
# Beside .venv there may be others: make test PYTHON=python3.13 VENV=.venv-3.13
PYTHON ?= python3
# The torch release that `make constraints` pins; CPU and CUDA builds share this number.
TORCH := 2.13.0

VENV ?= .venv
# Processes of the default suite, one thread each.
WORKERS ?= 2
# Examples of each property of `make fuzz`.
EXAMPLES ?= 1000
BIN := $(VENV)/bin
# Compiling the tests and the shapes they check takes ten seconds; what is kept serves every later process.
export PYTHONDONTWRITEBYTECODE :=
STAMP := $(VENV)/.installed
# Sphinx is installed by the first `make docs`, so that setup stays as it is.
DOCS_STAMP := $(VENV)/.installed-docs
# mteb, Ray, sentence-transformers, wandb, selenium, build and twine are installed by the first `make test-slow`.
EXTRAS_STAMP := $(VENV)/.installed-extras
# Errors only: a package that one index lacks may be in another.
PIP_FLAGS := -qq --disable-pip-version-check --no-input

MAKEFLAGS += --no-print-directory
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup demo test test-slow test-gpu fuzz lint format bench notebook docs constraints clean

define check_python
@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
  echo "icecore needs Python 3.11 or newer, and '$(PYTHON)' is '$$($(PYTHON) --version 2>&1 | head -n 1)'. Name another one: make PYTHON=python3.12 $(or $(MAKECMDGOALS),setup)" >&2; \
  exit 1; }
endef

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' Makefile

setup: $(STAMP) ## install the pinned packages into .venv (about 2 minutes and 2 GB, once)
	@echo "$(VENV) is ready"

# The stamp is written last: after a setup that failed or was stopped, the next one resumes.
$(STAMP): pyproject.toml constraints.txt
	$(check_python)
	@rm -f $(STAMP)
	@echo "[1/3] creating $(VENV)"
	@$(PYTHON) -m venv $(VENV)
	@echo "[2/3] installing the pinned packages (about 2 minutes and 2 GB)"
	@$(BIN)/python -m pip install $(PIP_FLAGS) -c constraints.txt -e '.[dev]'
	@echo "[3/3] checking that their versions are compatible"
	@$(BIN)/python -m pip check $(PIP_FLAGS)
	@touch $(STAMP)

demo: $(STAMP) ## on the shipped samples: every layer under two mask plans, a head, a probe of words, and what the plan changes
	@$(BIN)/icecore demo

test: $(STAMP) ## the default suite: no network, no GPU; PYTHON=python3.13 VENV=.venv-3.13 for another Python
	@OMP_NUM_THREADS=$${OMP_NUM_THREADS:-1} $(BIN)/python -m pytest -n $(WORKERS) --dist loadscope

$(EXTRAS_STAMP): $(STAMP)
	@$(BIN)/python -m pip install $(PIP_FLAGS) -c constraints.txt -e '.[mteb,ray,sentence-transformers,release,wandb,browser]'
	@touch $(EXTRAS_STAMP)

test-slow: $(EXTRAS_STAMP) ## what the default suite leaves out: long runs on tiny decoders, real weights, kill tests, notebooks
	@OMP_NUM_THREADS=$${OMP_NUM_THREADS:-1} $(BIN)/python -m pytest -n $(WORKERS) --dist loadscope -m '(long or slow) and not gpu'

test-gpu: $(STAMP) ## the tests that need an accelerator
	@$(BIN)/python -m pytest -m gpu

fuzz: $(STAMP) ## mutated configs, data files, caches and run folders: EXAMPLES=1000 of each (an hour or so)
	@ICECORE_FUZZ=$(EXAMPLES) OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --timeout 0 tests/probes/fuzz

lint: $(STAMP) ## ruff and mypy, changing nothing
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/mypy

format: $(STAMP) ## format every file with ruff
	@$(BIN)/ruff check --fix
	@$(BIN)/ruff format

bench: $(STAMP) ## print the table of ratios and write it as JSON; QUICK=--quick for two minutes
	@$(BIN)/python -m benchmarks.run $(QUICK)

notebook: $(STAMP) ## build and execute the notebooks
	@$(BIN)/python notebooks/build.py --execute

$(DOCS_STAMP): $(STAMP)
	@$(BIN)/python -m pip install $(PIP_FLAGS) -c constraints.txt -e '.[docs]'
	@touch $(DOCS_STAMP)

docs: $(DOCS_STAMP) ## build the documentation site into build/docs, offline; warnings are errors
	@$(BIN)/python -m sphinx -q -W --keep-going -n -b html -d build/doctrees docs build/docs
	@echo "build/docs/index.html is ready"

constraints: ## update the pins to today's releases, from an empty environment
	$(check_python)
	@echo "[1/3] creating .venv-constraints"
	@$(PYTHON) -m venv --clear .venv-constraints
	@echo "[2/3] resolving and installing the newest releases beside torch $(TORCH)"
	@.venv-constraints/bin/python -m pip install $(PIP_FLAGS) torch==$(TORCH) -e '.[dev,docs,mteb,ray,sentence-transformers,release,wandb,browser]'
	@echo "[3/3] writing constraints.txt"
	@.venv-constraints/bin/python -m pip freeze --all --exclude-editable --exclude pip > .venv-constraints/frozen.txt
	@{ sed -n '/^#/p' constraints.txt; sed 's/^\(torch==[^+]*\)+.*/\1/' .venv-constraints/frozen.txt; } > .venv-constraints/new.txt
	@! grep -E '://| @ ' .venv-constraints/new.txt || { echo "constraints.txt is unchanged: the lines above name a location instead of a release" >&2; exit 1; }
	@mv .venv-constraints/new.txt constraints.txt
	@rm -rf .venv-constraints

clean: ## remove .venv and the tools' leftovers; runs/ and caches/ stay
	@rm -rf .venv .venv-* build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
