# Everything a fresh clone needs: Python (3.11 to 3.14), pip and make.  PYTHON=python3.12 chooses another one.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
CODE   := dialects passes backend runtime
# The first reading of the house, and the last commit before it was rebuilt.
MEASURES ?= 3eb923d 1905298
# Of processor time, for all quick tests (4 minutes on 2 cores, less what it takes to find them) and all slow ones.
# The quick ones took 373 and 513 s on two machines on which additions take as long (2026-12-01).
QUICK_SECONDS := 700
SLOW_SECONDS  := 5000
SOAK   ?= $(wildcard test/soak/soak_*.py)

.DEFAULT_GOAL := help
.PHONY: help run test test-slow lock locked check bench compat conformance soak docs site pages picture figures figures-all measures

help: ## List the targets
	@sed -n 's/^\([a-z-]*\):.*## /  make \1\t/p' $(MAKEFILE_LIST) | expand -t 20

run: $(VENV)/installed ## Compile ResNet-50, run it on the emulated machine, compare it with onnxruntime
	$(BIN)/frustum run zoo:resnet50 --check

# Where nothing may write bytecode, as in many containers, every worker would compile all tests anew, for a minute.
test test-slow soak: export PYTHONDONTWRITEBYTECODE =

test: $(VENV)/installed-test ## Run the quick tests, before each commit (pytest; the .mlir files of lit are among them)
	$(BIN)/python -m pytest -n auto --dist worksteal -m "not slow" --most-seconds $(QUICK_SECONDS) $(PYTEST_ARGS)

test-slow: $(VENV)/installed-test ## Run the slow tests (with `make test` and `make check` what a change has to pass)
	$(BIN)/python -m pytest -n auto --dist worksteal -m "slow and not soak" --hypothesis-profile=slow --most-seconds $(SLOW_SECONDS) $(PYTEST_ARGS)

check: $(VENV)/installed-dev ## Run the linter, the type checkers and the import contracts
	$(BIN)/ruff check
	$(BIN)/lint-imports
	$(BIN)/mypy
	$(BIN)/python -m pytest -q -k "mypy or every_type" test/test_packaging.py

compat: ## Run the quick tests with the least and the newest packages, and with every Python that is here
	$(PYTHON) test/compat.py $(COMPAT_ARGS)

bench: $(VENV)/installed ## Measure whole runs (BENCH_ARGS="resnet50 --runs 1" for less)
	$(BIN)/python benchmarks/measure.py $(BENCH_ARGS)

conformance: $(VENV)/installed-test ## Run the ONNX backend suite, all 2033 cases, and write docs/conformance.md
	$(BIN)/python benchmarks/conformance.py --docs $(CONFORMANCE_ARGS)

soak: $(VENV)/installed-test ## Run the tests that are left and the wide comparisons, two hours (SOAK=test: all tests with 40 times the random examples)
	$(if $(filter file,$(origin SOAK)),$(BIN)/python -m pytest -n auto --dist worksteal -m soak $(PYTEST_ARGS))
	$(BIN)/python -m pytest -n auto -rP --hypothesis-profile=soak $(PYTEST_ARGS) $(SOAK)

measures: $(VENV)/bin/python ## Print the measures of the source, now and at some commits (MEASURES="v1 v2": at others)
	$(BIN)/python test/support/house.py $(MEASURES)

docs: $(VENV)/installed-test ## Write the pages, tables and drawings of docs/ that come from code anew
	$(BIN)/python -m frustum.runtime.op_table docs/operations.md
	$(BIN)/python -m frustum.runtime.pass_table docs/passes.md
	$(BIN)/python examples/stops.py > docs/stops.md
	$(BIN)/python examples/validation.py > docs/validation.md
	$(BIN)/python examples/drawings.py docs/pictures
	$(BIN)/python examples/technique_drawings.py docs/pictures
	$(BIN)/python -m frustum.backend.targets docs/targets.md
	$(BIN)/python -m frustum.runtime.option_table docs/commands.md
	$(BIN)/python -m frustum.runtime.report.key_table docs/report.md
	$(BIN)/python examples/pages.py
	$(BIN)/python examples/dependencies.py docs

lock: $(VENV)/bin/python ## Write uv.lock anew: the newest versions within the ranges, of all packages for development
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[lock]'
	$(BIN)/uv lock --upgrade

locked: $(VENV)/bin/python ## Install what uv.lock says, all tools for development too, in place of newer versions
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[lock]'
	UV_PROJECT_ENVIRONMENT=$(VENV) $(BIN)/uv sync --frozen --inexact --extra dev
	@touch $(VENV)/installed $(VENV)/installed-test $(VENV)/installed-dev

site: $(VENV)/installed-test ## Write the pages of docs/ as a site to build/site (warnings are errors)
	$(BIN)/python -m sphinx -W --keep-going -q -b html docs build/site

pages: $(VENV)/installed-test ## Test the page of `frustum run --html` in a browser (needs chromium)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[pages]'
	$(BIN)/python -m pytest -n 0 test/runtime/show

picture: $(VENV)/installed ## Draw the page that README opens with anew (needs chromium)
	$(BIN)/python examples/page_picture.py docs/pictures/page.png

figures: $(VENV)/installed ## Measure the figures of README and docs, and write them there (under 20 minutes)
	$(BIN)/python benchmarks/figures.py $(FIGURES_ARGS)

figures-all: $(VENV)/installed-test ## Measure those of benchmarks/README.md and docs/conformance.md too
	$(BIN)/python benchmarks/figures.py --all
	$(BIN)/python benchmarks/conformance.py --docs

# One stamp per set of packages: pip runs again only when pyproject.toml changes.
$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/installed: pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable .
	@touch $@

$(VENV)/installed-test: pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[test]'
	@touch $@ $(VENV)/installed

$(VENV)/installed-dev: pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@ $(VENV)/installed $(VENV)/installed-test
