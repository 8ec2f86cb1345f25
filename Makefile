# The two commands of the README are `make demo` and `make test`; both make the virtual environment they need.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# The browser that the tests of the report page drive; Debian: apt-get install chromium.
CHROMIUM ?= chromium
export CHROMIUM
NO_BROWSER = $(if $(shell command -v $(CHROMIUM) 2>/dev/null),,yes)

.PHONY: demo test test-all test-browser lint format clean

# Installed again when the project's requirements change.
$(VENV)/installed: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	touch $@

demo: $(VENV)/installed
	$(BIN)/nextn demo

test: $(VENV)/installed
	$(BIN)/python -m pytest -n 2 -m 'not long'

test-all: $(VENV)/installed
	$(BIN)/python -m pytest -n 2 $(if $(NO_BROWSER),-m 'not browser')
	$(if $(NO_BROWSER),@echo 'NOT RUN: the tests in a browser; install $(CHROMIUM) and run make test-browser')

test-browser: $(VENV)/installed
	$(BIN)/python -m pytest -m browser

lint: $(VENV)/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/installed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache
