# Each target makes the environment it needs: plain `python3 -m venv`, then pip, pinned by constraints.txt.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
BENCH_READY := .venv-bench/.ready
ARGS ?=
PYTEST := $(BIN)/python -m pytest -n logical --maxprocesses 8 --dist worksteal

.PHONY: demo test slow check format api bench clean

demo: $(READY)
	$(BIN)/python -m learners.demo $(ARGS)

test: $(READY)
	$(PYTEST) $(ARGS)

# What takes minutes: whole runs of learning, Atari and MuJoCo.
slow: $(READY)
	$(PYTEST) -m slow $(ARGS)

check: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright
	$(BIN)/lint-imports
	$(PYTEST) $(ARGS)

format: $(READY)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# Writes the list of public names that the tests compare with.
api: $(READY)
	$(BIN)/python -m tests.test_house

bench: $(BENCH_READY)
	.venv-bench/bin/python -m benchmarks $(ARGS)

$(READY): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dev]'
	touch $@

$(BENCH_READY): pyproject.toml constraints.txt
	test -x .venv-bench/bin/python || $(PYTHON) -m venv .venv-bench
	.venv-bench/bin/python -m pip install --quiet -c constraints.txt -e '.[bench]'
	touch $@

clean:
	rm -rf .venv .venv-bench build dist *.egg-info .pytest_cache .ruff_cache .hypothesis .import_linter_cache
