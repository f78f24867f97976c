# Two commands on a fresh machine with Python 3.11: `make demo` and `make test`.
PYTHON ?= python3
BIN := .venv/bin
export PYTHONDONTWRITEBYTECODE :=  # compiled test files are kept, else each process compiles them anew

# a command with a dot every two seconds while it says nothing itself: $(call dotted,COMMAND)
define dotted
$(1) & pid=$$!; while kill -0 $$pid 2>/dev/null; do sleep 2; printf .; done; echo; wait $$pid
endef
PIP := $(BIN)/pip --disable-pip-version-check install --progress-bar on --no-compile --constraint constraints.txt --editable
COMPILE := $(BIN)/python -W ignore -m compileall -q -j 0 .venv/lib >/dev/null || true  # on all cores; pip uses one

.PHONY: demo test check lint types fast all docs browser clean

.venv/bin/python:
	@$(PYTHON) -c 'import sys; assert sys.version_info >= (3, 11), "FedVeca needs Python 3.11 or newer"'
	@echo "making the environment .venv (some seconds)"
	@$(call dotted,$(PYTHON) -m venv .venv)

.venv/core: .venv/bin/python pyproject.toml constraints.txt
	@echo "installing FedVeca and PyTorch into .venv (minutes on a slow line)"
	@$(call dotted,$(PIP) .)
	@$(call dotted,$(COMPILE))
	@touch $@

.venv/ready: .venv/bin/python pyproject.toml constraints.txt  ## with every extra and the tools of development
	@echo "installing FedVeca, PyTorch, every extra and the tools of development into .venv (minutes on a slow line)"
	@$(call dotted,$(PIP) '.[dev]')
	@$(call dotted,$(COMPILE))
	@touch .venv/core $@

demo: .venv/core  ## six methods on the digits inside scikit-learn, three seeds: a table, a figure and a report
	@echo "comparing six methods on the digits inside scikit-learn, three seeds each (some seconds)"
	@$(BIN)/fedveca compare digits-case3 --seeds 3
	@echo "open the report in a browser, or see what else there is: $(BIN)/fedveca --help"

browser:  ## Chromium for the tests that open pages; where it cannot be installed they skip and say so
	@command -v chromium >/dev/null || { command -v apt-get >/dev/null && [ "$$(id -u)" = 0 ] && \
	  apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq chromium >/dev/null; } || \
	  echo "no chromium, and it cannot be installed here: tests that open pages will be skipped"

docs: .venv/ready  ## the documentation site, in site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

lint: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check --quiet .

types: .venv/ready
	$(BIN)/mypy

fast: .venv/ready
	$(BIN)/python -m pytest -m 'not slow' -n 2

all: .venv/ready browser
	$(BIN)/python -m pytest -n 4 --dist loadfile --no-loadscope-reorder --durations 40  # much of it waits for other processes

test: lint  ## everything: lint, types, all tests (one of them builds the site)
	@$(MAKE) --no-print-directory -j 2 types all

check: lint  ## the quick round, in under two minutes
	@$(MAKE) --no-print-directory -j 2 types fast

clean:
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache
