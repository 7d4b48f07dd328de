# Two commands on a fresh machine: `make serve` and `make test`. Everything else is for those who work on Lineclear.
VENV    ?= .venv
PYTHON  ?= python3
BIN     := $(VENV)/bin
ARGS    ?=

# Real traces and client recordings for tests; tests that need them are skipped by name where it is not set.
LINECLEAR_DATA ?= $(if $(wildcard ../shared/data),$(abspath ../shared),)
export LINECLEAR_DATA

.PHONY: serve test check eval bench train clean

serve: $(VENV)/.serve  ## set up and serve the bundled model on http://127.0.0.1:8000
	$(BIN)/lineclear serve $(ARGS)

test: $(VENV)/.dev  ## set up and run every test
	$(BIN)/python -m pytest $(ARGS)

check: $(VENV)/.dev  ## lint, format, types, import contracts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/basedpyright

eval: $(VENV)/.serve  ## the bundled model's figures on held-out data
	$(BIN)/lineclear eval $(ARGS)

bench: $(VENV)/.dev  ## speed, as ratios against transformers in the same run
	$(BIN)/python -m bench $(ARGS)

train: $(VENV)/.dev  ## train lineclear-tiny again, from the Python standard library and generated edit tasks
	$(BIN)/python -m training.train $(ARGS)

$(VENV)/.serve: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet torch==2.13.0
	$(BIN)/pip install --quiet --editable .
	touch $@

$(VENV)/.dev: $(VENV)/.serve
	$(BIN)/pip install --quiet --editable '.[test,check]'
	touch $@

clean:
	rm -rf $(VENV) .pytest_cache .ruff_cache .hypothesis
