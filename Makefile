# `make demo` shows what acclimate does, `make check` runs the quick checks, `make test` all of them. Each creates a
# virtual environment if there is none.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# One more than there are cores, as many tests wait: for services, browsers and time limits.
PROCESSES ?= $(shell $(PYTHON) -c 'import os; print(os.cpu_count() + 1)')
# Modules are compiled when they are first imported (most never are), and must be kept then: otherwise each of the
# hundreds of processes that tests start would compile them all again.
unexport PYTHONDONTWRITEBYTECODE
CONSTRAINTS ?= constraints.txt
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --constraint $(CONSTRAINTS)

# for `make test-numpy`
NUMPY ?= 1.26.4
NUMPY_VENV ?= .venv-numpy-$(NUMPY)

# for `make test-ray`: a version of Ray, and what it needs to be older than it is now
RAY ?= 2.40.0
RAY_VENV ?= .venv-ray-$(RAY)
RAY_NEEDS := $(if $(filter 2.4% 2.50% 2.51% 2.52% 2.53% 2.54% 2.55% 2.56%,$(RAY)),'protobuf<7')

.PHONY: demo stub check check-tests test test-cluster test-others test-numpy test-ray coverage lint docs benchmark release clean

demo: $(VENV)/.installed
	$(BIN)/acclimate demo

# The public names for type checkers; needed after a method was added.
stub: $(VENV)/.installed-dev
	$(BIN)/python tests/test_package.py

# Before a commit: the linters, and the tests of the engine, methods, laws, classify and the command line that start no
# process.
check: $(VENV)/.installed-dev
	$(MAKE) --jobs=2 lint check-tests

check-tests: $(VENV)/.installed-dev
	OMP_NUM_THREADS=1 $(BIN)/pytest tests/test_*.py tests/methods tests/checks tests/classify tests/cli \
		-m 'not (slow or browser or fuzz or guides)' --numprocesses $(PROCESSES) --dist loadfile --no-loadscope-reorder

test: $(VENV)/.installed-dev
	$(MAKE) --jobs=2 lint docs
	$(MAKE) --jobs=2 test-cluster test-others

# The same with the coverage measured, which takes a fifth longer.
coverage:
	$(MAKE) test COV='--cov --cov-report='
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report --skip-covered --fail-under=95

# One Ray at a time is enough for a machine.
test-cluster: $(VENV)/.installed-dev
	OMP_NUM_THREADS=1 COVERAGE_FILE=.coverage.cluster $(BIN)/pytest tests/cluster $(COV)

test-others: $(VENV)/.installed-dev
	OMP_NUM_THREADS=1 COVERAGE_FILE=.coverage.others $(BIN)/pytest --ignore tests/cluster \
		--numprocesses $(PROCESSES) --dist loadfile --no-loadscope-reorder $(COV)

# Everything with another version of NumPy, in an environment of its own: `make test-numpy NUMPY=1.26.4`.
# Of pandas and pyarrow, the newest versions need NumPy 2.
test-numpy:
	mkdir -p $(NUMPY_VENV)
	sed -e 's/^numpy==.*/numpy==$(NUMPY)/' -e '/^pandas==/d' -e 's/^pyarrow==.*/pyarrow<26/' constraints.txt \
		> $(NUMPY_VENV)/constraints.txt
	$(MAKE) test VENV=$(NUMPY_VENV) CONSTRAINTS=$(NUMPY_VENV)/constraints.txt

# The cluster with another version of Ray, in an environment of its own: `make test-ray RAY=2.40.0`.
# Old packages warn about their own dependencies, so warnings are not errors here.
test-ray:
	test -x $(RAY_VENV)/bin/python || $(PYTHON) -m venv $(RAY_VENV)
	sed '/^ray==/d' constraints.txt > $(RAY_VENV)/constraints.txt
	$(RAY_VENV)/bin/python -m pip install --quiet --disable-pip-version-check --constraint $(RAY_VENV)/constraints.txt \
		'ray[data]==$(RAY)' $(RAY_NEEDS) --editable '.[convert,ray]' flask flask-cors hypothesis \
		'moto[s3]' psutil pytest
	OMP_NUM_THREADS=1 $(RAY_VENV)/bin/pytest tests/cluster -o filterwarnings=default --disable-warnings

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: $(VENV)/.installed-dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

benchmark: $(VENV)/.installed-dev
	$(BIN)/python benchmarks/adapter_speed.py

# Wheel, sdist and the list of what they contain, built from the committed files and checked as users get them.
release: | $(BIN)/python
	$(INSTALL) build twine
	$(BIN)/python tools/release.py

clean:
	rm -rf dist $(VENV) .venv-numpy-* .venv-ray-* site .coverage* .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml $(CONSTRAINTS) | $(BIN)/python
	$(INSTALL) --editable '.[plot,serve]'
	touch $@

$(VENV)/.installed-dev: pyproject.toml $(CONSTRAINTS) | $(BIN)/python
	$(INSTALL) --editable '.[dev]'
	touch $@ $(VENV)/.installed
