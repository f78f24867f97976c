# Two commands on a fresh machine with Python 3.11: `make demo` and `make test`.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test check docs browser clean

.venv/core: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; assert sys.version_info >= (3, 11), "FedVeca needs Python 3.11 or newer"'
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --constraint constraints.txt --editable .
	touch $@

.venv/ready: .venv/core  ## with every extra and the tools of development
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

demo: .venv/core  ## six methods on the digits inside scikit-learn, three seeds: a table and a figure
	$(BIN)/fedveca compare digits-case3 --seeds 3 --workers 3

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
	$(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder  # much of it waits for other processes

check: .venv/ready  ## the quick round, in under two minutes
	$(BIN)/ruff check .
	$(BIN)/ruff format --check --quiet .
	$(BIN)/mypy
	$(BIN)/mypy --config-file tests/mypy.ini tests
	$(BIN)/python -m pytest -m 'not slow' -n 2

clean:
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache
