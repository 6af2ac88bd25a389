# `make demo` shows what acclimate does, `make test` runs all checks. Each creates a virtual environment if there is none.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: demo test lint docs benchmark clean

demo: $(VENV)/.installed
	$(BIN)/acclimate demo

test: $(VENV)/.installed-dev lint docs
	OMP_NUM_THREADS=1 $(BIN)/pytest --numprocesses auto --dist loadfile --cov --cov-report=term:skip-covered --cov-fail-under=95

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: $(VENV)/.installed-dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

benchmark: $(VENV)/.installed-dev
	$(BIN)/python benchmarks/adapter_speed.py

clean:
	rm -rf $(VENV) site .coverage .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml constraints.txt | $(BIN)/python
	$(INSTALL) --editable '.[plot,serve]'
	touch $@

$(VENV)/.installed-dev: pyproject.toml constraints.txt | $(BIN)/python
	$(INSTALL) --editable '.[dev]'
	touch $@ $(VENV)/.installed
