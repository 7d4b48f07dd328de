# Two commands on a fresh machine: `make serve` and `make test`. Everything else is for those who work on Lineclear.
VENV    ?= .venv
PYTHON  ?= python3
BIN     := $(VENV)/bin
ARGS    ?=

# pip says what it fetches, and on a terminal how far it is; its own new releases are not news here.
PIP_FLAGS := --disable-pip-version-check

# Real traces and client recordings for tests; tests that need them are skipped by name where it is not set.
LINECLEAR_DATA ?= $(if $(wildcard ../shared/data),$(abspath ../shared),)
export LINECLEAR_DATA

# Two files of tests at a time, those with processes first: many wait. Empty runs one after the other.
SIDE_BY_SIDE ?= -n 2 --dist loadfile --no-loadscope-reorder

.PHONY: serve test check eval bench train clients clean

serve: $(VENV)/.serve  ## set up and serve the bundled model on http://127.0.0.1:8000
	$(BIN)/lineclear serve $(ARGS)

test: $(VENV)/.dev  ## set up and run every test
	$(BIN)/python -m pytest $(SIDE_BY_SIDE) $(ARGS)

check: $(VENV)/.dev  ## lint, format, types, import contracts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/basedpyright

eval: $(VENV)/.serve  ## the bundled model's figures on held-out data
	$(BIN)/lineclear eval $(ARGS)

bench: $(VENV)/.dev  ## speed, as ratios against transformers in the same run
	$(BIN)/python -m bench $(ARGS)

RUN ?= runs/lineclear-tiny
train: $(VENV)/.dev  ## train lineclear-tiny again in $(RUN): under three hours on one core; run again, it goes on where it was
	$(BIN)/python -m training.train --out $(RUN)/first --minutes 80 --resume
	$(BIN)/python -m training.train --out $(RUN)/second --minutes 85 --peak 1e-3 --start-from $(RUN)/first/state.pt --resume
	$(BIN)/python -m training.evaluate --state $(RUN)/second/state.pt --tasks 200 --code 24 --damage 40
	@echo "To ship it: $(BIN)/python -m training.export --state $(RUN)/second/state.pt"

$(VENV)/.serve: pyproject.toml
	@echo "Setting up $(VENV): torch and a dozen small libraries, 1 to 5 minutes the first time, as the network allows."
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install $(PIP_FLAGS) torch==2.13.0
	$(BIN)/pip install $(PIP_FLAGS) --editable .
	@touch $@
	@echo "$(VENV) is ready to serve."

$(VENV)/.dev: $(VENV)/.serve
	@echo "Adding to $(VENV) what tests and checks need: about a minute."
	$(BIN)/pip install $(PIP_FLAGS) --editable '.[test,check]'
	@touch $@
	@echo "$(VENV) is ready to test."

AGENTS := @anthropic-ai/claude-code@2.1.332 @openai/codex@0.171.0 opencode-ai@1.18.33
clients:  ## install the coding agents that tests/e2e/test_agents.py drives: 1.9 GB in .clients, by npm and pip
	npm install --no-audit --no-fund --prefix .clients $(AGENTS)
	$(PYTHON) -m venv .clients/mini
	.clients/mini/bin/pip install $(PIP_FLAGS) mini-swe-agent==2.4.6

clean:
	rm -rf $(VENV) .pytest_cache .ruff_cache .hypothesis
