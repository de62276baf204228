# What these targets do, in plain commands (for Windows, or without make):
#     python -m venv .venv
#     .venv/bin/pip install -e .            (for `make test`: -e ".[test,tensorboard,accelerate]")
#     .venv/bin/python -m bench run --variant ddp_amp
# On Linux the package index's torch is the CUDA build, several GB, also on a machine without a GPU.
# Works with GNU make 3.81 and newer.

PYTHON ?= python3
ARGS ?=

VENV := .venv
PY := $(VENV)/bin/python
PIP := $(PY) -m pip --disable-pip-version-check

# A stamp is written when an install is complete, and taken away when one begins: an interrupted one is
# begun again. A virtual environment whose Python is gone (an upgrade of the system's, say) is made anew.
MADE := $(VENV)/.made
RUN := $(VENV)/.installed-run
TEST := $(VENV)/.installed-test
PRESENT := $(shell test -x $(PY) && echo yes)
ANEW := $(if $(PRESENT),,anew)

.PHONY: help run test lint format bench gpu-check report setup clean anew

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-9s %s\n", $$1, $$2 }' Makefile
	@echo '  ARGS="..." goes to the command behind run, test, bench or report; PYTHON=... makes .venv'

run: $(RUN) ## set up when needed, then train the variant ddp_amp on all of MNIST and show the table
	@$(PY) -m bench run --variant ddp_amp $(ARGS)

test: $(TEST) ## set up when needed, then run the tests
	@$(PY) -m pytest -n 2 --dist loadfile $(ARGS)

lint: $(TEST) ## check style and format
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check .

format: $(TEST) ## correct both where a tool can
	@$(PY) -m ruff check --fix .
	@$(PY) -m ruff format .

bench: $(TEST) ## time single parts (one step, the loader, the step log)
	@$(PY) -m pytest tests/benchmarks --benchmark-enable --benchmark-only $(ARGS)

gpu-check: $(TEST) ## on a GPU machine: all variants on all GPUs, then two ranks that share one; the report
	-@$(PY) -m bench run --variant all --repeats 3
	-@CUDA_VISIBLE_DEVICES=0 $(PY) -m bench run --variant all --world-size 2 --train-images 6400
	@$(PY) -m bench report

report: $(RUN) ## draw REPORT.md and its figures from the records in results/
	@$(PY) -m bench report $(ARGS)

setup: $(TEST) ## only set up, with all that tests and development need

clean: ## remove .venv and everything else that was made here, but no results
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .ruff_cache .benchmarks .hypothesis
	find bench variants tests -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

$(MADE): $(ANEW)
	@command -v "$(PYTHON)" >/dev/null || { echo "There is no $(PYTHON) here; name a Python 3.10 or newer: make PYTHON=/path/to/python3" >&2; exit 1; }
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { echo "$(PYTHON) is $$("$(PYTHON)" --version 2>&1), this needs 3.10 or newer: make PYTHON=python3.12, for example" >&2; exit 1; }
	@"$(PYTHON)" -c 'import ensurepip, venv' 2>/dev/null || { echo "$(PYTHON) cannot make virtual environments (on Debian and Ubuntu: apt install python3-venv)" >&2; exit 1; }
	@echo "Making $(VENV) with $$("$(PYTHON)" --version)"
	@"$(PYTHON)" -m venv --clear $(VENV)
	@$(PIP) install --quiet 'pip>=21.3' # the first to install a pyproject.toml in place
	@touch $@

$(RUN): pyproject.toml $(MADE)
	@rm -f $(RUN) $(TEST)
	@echo "Installing (torch is big: this takes minutes, once)"
	@$(PIP) install -e .
	@touch $@

$(TEST): pyproject.toml $(MADE)
	@rm -f $(RUN) $(TEST)
	@echo "Installing, with what the tests need (torch is big: this takes minutes, once)"
	@$(PIP) install -e '.[test,tensorboard,accelerate]'
	@touch $(RUN) $@
