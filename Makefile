# make run        serve the default model on 127.0.0.1:8080   (MODEL=file.gguf, ARGS="-c 8192 --port 9000")
# make test       the fast tests        make test-all   the same, then the slow ones
# make lint       style, types, layers  make bench      llama-bench's table

VENV := .venv
BIN := $(VENV)/bin
PYTHON ?= $(firstword $(foreach name,python3 python3.14 python3.13 python3.12 python3.11,$(shell \
	$(name) -c 'import sys; sys.version_info >= (3, 11) and print("$(name)")' 2>/dev/null)))
MODEL ?=
ARGS ?=

# Sets $$model: the file asked for, else the default one (its path is the only line on stdout).
find_model = model='$(MODEL)'; if [ -z "$$model" ]; then model=$$($(BIN)/emberd fetch smollm2) || exit; fi

.PHONY: run test test-all lint bench clean
.DELETE_ON_ERROR:
.NOTPARALLEL:

run: $(VENV)/installed
	@$(find_model); exec $(BIN)/emberd -m "$$model" --host 127.0.0.1 --port 8080 $(ARGS)

test: $(VENV)/installed-dev
	@$(BIN)/emberd fetch smollm2 >/dev/null || echo 'tests that need the model are skipped' >&2
	$(BIN)/python -m pytest -m 'not slow' $(ARGS)

test-all: test
	@$(BIN)/emberd fetch gemma3-270m >/dev/null || echo 'tests that need the model are skipped' >&2
	@$(BIN)/emberd minilm >/dev/null || echo 'tests that need the model are skipped' >&2
	$(BIN)/python -m pytest -m slow $(ARGS)

lint: $(VENV)/installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(VENV)/installed
	@$(find_model); exec $(BIN)/emberd bench -m "$$model" $(ARGS)

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

$(VENV)/installed: pyproject.toml $(BIN)/python
	@echo "installing emberd and what it needs into $(VENV) (once, a minute or two)" >&2
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable .
	@touch $@

$(VENV)/installed-dev: $(VENV)/installed
	@echo "installing the tools for tests and checks" >&2
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[test,dev]'
	@touch $@

$(BIN)/python:
	@if [ -z '$(PYTHON)' ]; then \
		printf 'emberd needs Python 3.11 or newer, and this machine has '; \
		if command -v python3 >/dev/null; then python3 --version; else echo 'no python3'; fi; \
		echo 'Install one, or name it: make PYTHON=/path/to/python3.12 run'; exit 1; fi >&2
	@$(PYTHON) -m venv --clear $(VENV) || { rm -rf $(VENV); \
		echo 'Python has no venv module: on Debian and Ubuntu, apt install python3-venv' >&2; exit 1; }
