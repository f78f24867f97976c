# Two commands on a fresh machine with Python 3.11: `make demo` and `make test`.
PYTHON ?= python3
BIN := .venv/bin

# a command with a dot every two seconds while it says nothing itself: $(call dotted,COMMAND)
define dotted
$(1) & pid=$$!; while kill -0 $$pid 2>/dev/null; do sleep 2; printf .; done; echo; wait $$pid
endef
PIP := $(BIN)/pip --disable-pip-version-check install --progress-bar on --constraint constraints.txt --editable

.PHONY: demo test check docs browser clean

.venv/core: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; assert sys.version_info >= (3, 11), "FedVeca needs Python 3.11 or newer"'
	@echo "1/2 making the environment .venv (some seconds)"
	@$(call dotted,$(PYTHON) -m venv .venv)
	@echo "2/2 installing FedVeca and PyTorch into .venv (minutes on a slow line)"
	@$(call dotted,$(PIP) .)
	@touch $@

.venv/ready: .venv/core  ## with every extra and the tools of development
	@echo "installing every extra and the tools of development into .venv (minutes on a slow line)"
	@$(call dotted,$(PIP) '.[dev]')
	@touch $@

demo: .venv/core  ## six methods on the digits inside scikit-learn, three seeds: a table, a figure and a report
	@echo "comparing six methods on the digits inside scikit-learn, three seeds each (a minute or two)"
	@$(BIN)/fedveca compare digits-case3 --seeds 3 --workers 3
	@echo "open the report in a browser, or see what else there is: $(BIN)/fedveca --help"

browser:  ## Chromium for the tests that open pages; where it cannot be installed they skip and say so
	@command -v chromium >/dev/null || { command -v apt-get >/dev/null && [ "$$(id -u)" = 0 ] && \
	  apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq chromium >/dev/null; } || \
	  echo "no chromium, and it cannot be installed here: tests that open pages will be skipped"

docs: .venv/ready  ## the documentation site, in site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

test: .venv/ready browser  ## everything: lint, types, all tests (one of them builds the site)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check --quiet .
	$(BIN)/mypy
	$(BIN)/mypy --config-file tests/mypy.ini tests
	$(BIN)/python -m pytest -n 4 --dist loadfile --no-loadscope-reorder  # much of it waits for other processes

check: .venv/ready  ## the quick round, in under two minutes
	$(BIN)/ruff check .
	$(BIN)/ruff format --check --quiet .
	$(BIN)/mypy
	$(BIN)/mypy --config-file tests/mypy.ini tests
	$(BIN)/python -m pytest -m 'not slow' -n 2

clean:
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache
