# Every target sets up what it needs in .venv; `make` alone lists the targets.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.DEFAULT_GOAL := help
.PHONY: help demo test lint format typecheck imports docs bench-iteration bench-small bench clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-16s %s\n", $$1, $$2}' Makefile

demo: $(VENV)/.installed-demo  ## learn a dictionary on example data and show it
	$(BIN)/somf demo

test: lint typecheck imports  ## all checks, then the tests
	$(BIN)/python -m pytest -n auto --dist loadfile

lint: $(VENV)/.installed-dev  ## ruff: style and formatting
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(VENV)/.installed-dev  ## let ruff repair and format the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

typecheck: $(VENV)/.installed-dev  ## mypy
	$(BIN)/mypy

imports: $(VENV)/.installed-dev  ## check that imports point down the layers
	$(BIN)/lint-imports

docs: $(VENV)/.installed-docs  ## the documentation site; its examples run, 2 minutes
	$(BIN)/python -m sphinx -M html docs docs/_build -W --keep-going
	@echo "Open docs/_build/html/index.html"

bench-iteration: $(VENV)/.installed-demo  ## time the parts of one iteration
	$(BIN)/python benchmarks/iteration.py

bench-small: $(VENV)/.installed-bench  ## small races against other packages
	$(BIN)/python -m benchmarks.suite run peers --small --seeds 1 \
		--dataset hyperspectral --dataset photos --dataset fmri-simulated

bench: $(VENV)/.installed-bench  ## races against other packages, an hour and more
	$(BIN)/python -m benchmarks.suite run peers --seeds 5 \
		--dataset hyperspectral --dataset hyperspectral-256 \
		--dataset hyperspectral-nmf --dataset photos \
		--dataset fmri-simulated --dataset fmri-real

clean:  ## remove the environment, caches and build products
	rm -rf $(VENV) build dist .coverage htmlcov
	rm -rf docs/_build docs/auto_examples docs/generated
	rm -rf .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find src tests benchmarks -type d -name __pycache__ -prune -exec rm -rf {} + \
		2>/dev/null || true

# The environment. An extra is installed again whenever pyproject.toml changes.
$(VENV)/.installed-%: pyproject.toml $(VENV)/.created
	@echo "Installing somf[$*] into $(VENV) (a few minutes the first time)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[$*]"
	@touch $@

$(VENV)/.created:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "somf needs Python 3.11 or newer, but $(PYTHON) is missing or older." \
		"Name another one: make PYTHON=python3.12 ..." >&2; exit 1; }
	$(PYTHON) -m venv --clear $(VENV)
	@touch $@
