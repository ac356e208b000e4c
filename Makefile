# `make demo` and `make test` do all their own set-up on a fresh machine: system packages, venv, locked libraries.
VENV    ?= .venv
PYTHON  ?= $(shell command -v python3.11 || echo python3)
BIN     := $(VENV)/bin
APT     := $(if $(filter 0,$(shell id -u)),,sudo )apt-get
READY   := $(VENV)/.ready
# one group of tests per core, each on one thread: networks this small are slower on two. `tests/conftest.py` makes the
# groups and puts those first that take longest, and xdist is to keep that order.
PYTEST  := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n auto --dist loadgroup --no-loadscope-reorder
# how much `make fuzz` tries
INPUTS  := 2000
KILLS   := 20
SEED    := 0
# `make test RECORD=--record-seconds` notes what each group of tests takes, by which they are put in order
RECORD  :=

.PHONY: help install system browser demo test lint check slow bench docs fuzz lock clean

help:            ## this list
	@grep -E '^[a-z]+: .*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

install: $(READY) ## venv with the exact versions of requirements.lock

$(READY): requirements.lock pyproject.toml | system
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -r requirements.lock
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --editable .
	@touch $@

system:          ## Python with venv, from Debian's packages where it is missing
	@$(PYTHON) -c 'import sys, venv, ensurepip; assert sys.version_info >= (3, 11)' 2>/dev/null || { \
	  command -v apt-get >/dev/null || { echo "hidisc needs Python 3.11 or newer with venv: install it, then run make again."; exit 1; }; \
	  $(APT) update -qq && $(APT) install -qq -y python3.11 python3.11-venv; }

browser:         ## Chromium, which the tests of pages look through, from Debian's packages where it is missing
	@command -v chromium >/dev/null || { command -v apt-get >/dev/null && $(APT) update -qq && \
	  $(APT) install -qq -y chromium; } || echo "no Chromium here: the tests of pages are skipped"

demo: $(READY)   ## from drawn slides to a report on two encoders
	$(BIN)/hidisc demo --out demo

lint: $(READY)   ## style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

check: lint      ## style, types and the fast tests
	$(PYTEST) -m "not slow and not whole"

test: $(READY) browser ## all tests but the slow ones
	$(PYTEST) -m "not slow" $(RECORD)

slow: $(READY)   ## the tests that take minutes
	$(BIN)/python -m pytest -q -m slow

bench: $(READY)  ## measure every claim in bench/ and write bench/results.md
	$(BIN)/python bench/run.py

docs: $(READY)   ## pages on the Python API, from its docstrings: build/docs/index.html
	$(BIN)/python docs/reference.py build/docs

fuzz: $(READY)   ## mangled inputs of every kind, killed commands: make fuzz INPUTS=10000 KILLS=100 SEED=1
	$(BIN)/python -m fuzz.run --inputs $(INPUTS) --kills $(KILLS) --seed $(SEED)

lock: $(READY)   ## resolve pyproject.toml anew into requirements.lock (Python 3.11; torch's CUDA packages left out)
	$(BIN)/pip install --quiet --dry-run --ignore-installed --report .lock.json torch==2.14.1 torchvision==0.29.1 '.[dev]'
	$(BIN)/python -c "import json, re; \
	  found = [item['metadata'] for item in json.load(open('.lock.json'))['install']]; \
	  lines = sorted(f\"{item['name'].lower()}=={item['version']}\" for item in found); \
	  print('\n'.join(line for line in lines if not re.match('nvidia|cuda|triton|hidisc', line)))" > requirements.lock
	@rm .lock.json

clean:           ## remove the venv and the demo
	rm -rf $(VENV) demo
