# Two commands, each enough on a fresh machine with Python 3.11, pip and make:
#   make demo    install, train on embedded data, write a picture
#   make test    install, then lint, types, doctests and tests
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

.DEFAULT_GOAL := help
.PHONY: help install demo test test-browser lint types doctest unit bench bench-glm pictures format clean

help: ## show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 16

install: $(STAMP) ## create .venv and install the project with its development tools

$(STAMP): pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "tangograd needs Python 3.11 or newer; set PYTHON=")'
	@echo "installing into $(VENV), once: this takes a few minutes"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@

demo: install ## digits beside SGD and Adam, a regression in one pass, and the paper's claims
	$(BIN)/tangograd demo --output demo
	$(BIN)/tangograd fit --example fair --output demo/fair.json
	$(BIN)/tangograd reproduce --quick --output demo/reproduction
	@echo "open in a browser: demo/fair.html, the regression's report,"
	@echo "and demo/reproduction/index.html, the paper's claims, measured"

test: lint types doctest unit ## everything that must hold before a change lands

test-browser: install ## the reproduction's page in headless Chromium (needs chromium and chromedriver)
	$(BIN)/pytest -q tests/browser

lint: install ## style
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: install ## static types
	$(BIN)/mypy

doctest: install ## the examples in the docstrings and in the README
	$(BIN)/pytest -q --doctest-modules src --doctest-glob='*.md' README.md docs

unit: install ## the tests
	$(BIN)/pytest -q -n 2 tests

bench: install ## speed and memory against SGD, and untuned TANGO beside tuned Adam, into benchmarks/results
	$(BIN)/python benchmarks/step_cost.py
	$(BIN)/python benchmarks/engines.py
	$(BIN)/python benchmarks/tuning_free.py
	$(BIN)/python benchmarks/robustness.py --rivals
	$(BIN)/python benchmarks/robustness.py raw
	$(BIN)/python benchmarks/robustness_page.py

bench-glm: install ## accuracy, coverage, speed and memory of one-pass models (an hour; 12 GB of disk)
	$(BIN)/python benchmarks/glm_accuracy.py
	$(BIN)/python benchmarks/glm_coverage.py
	$(BIN)/python benchmarks/glm_speed.py
	$(BIN)/python benchmarks/glm_large.py

pictures: install ## draw the pictures of README and docs again
	$(BIN)/tangograd demo --output docs/images
	$(BIN)/tangograd reproduce figure-1 --output docs/images
	rm docs/images/index.html

format: install ## apply the style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean: ## remove what the other targets made
	rm -rf $(VENV) demo reproduction .mypy_cache .pytest_cache .ruff_cache
