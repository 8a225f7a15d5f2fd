# Each target creates the environment that it needs with `python3 -m venv` and pip. constraints.txt pins the versions.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
BENCH_READY := .venv-bench/.ready
DOCS_READY := .venv-docs/.ready
LOWEST_READY := .venv-lowest/.ready
ARGS ?=
LOWEST_EXTRAS := arrow command inspect minari pandas plot polars remote sql testing video zmq
LOWEST_TESTS := tests/storage/test_dataset.py tests/storage/test_round_trips.py tests/storage/test_crashes.py \
	tests/storage/test_sampling.py tests/storage/test_search.py tests/storage/test_statistics.py tests/command \
	tests/converters/test_minari.py tests/converters/test_token_rows.py tests/episodes/test_pack.py \
	tests/episodes/test_items_of_spaces.py tests/episodes/test_nested.py tests/episodes/transport \
	tests/inspection/test_plots.py tests/replay/test_replay_files.py tests/runners/test_env_runner.py \
	tests/runners/test_gymnasium_wrappers.py tests/learners/test_ppo.py
PIP := -m pip --no-input install --quiet -c constraints.txt
APT := DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=120 -y
PYTEST := $(BIN)/python -m pytest -n logical --maxprocesses 8 --dist worksteal

.PHONY: browser demo test test-lowest fresh slow soak learn check format api bench gpu docs clean

demo: $(READY)
	$(BIN)/python -m episode_learners.demo $(ARGS)

test: $(READY) browser
	$(PYTEST) $(ARGS)

# A part of the tests with the lowest versions that pyproject.toml declares. Old packages warn with newer ones of others.
# With them the warning of a buffer that a program never closes is not printed at its end: that test is left out.
test-lowest: $(LOWEST_READY)
	HYPOTHESIS_PROFILE=quick .venv-lowest/bin/python -m pytest -W ignore::DeprecationWarning $(LOWEST_TESTS) \
		--deselect 'tests/replay/test_replay_files.py::test_dropped_buffer_releases_files_with_warning[exit]' $(ARGS)

# Tests that take minutes: whole training runs, Atari and MuJoCo.
slow: $(READY)
	$(PYTEST) -m slow $(ARGS)

# A load of all parts for an hour, which fails if memory, file descriptors or threads grow. ARGS='--minutes 3' is shorter.
soak: $(READY)
	$(BIN)/python -m benchmarks.soak --minutes 60 $(ARGS)

# Each code block of each page, and each documented command, in a process of its own. Changes of the documentation run it.
fresh: $(READY)
	$(PYTEST) -m slow tests/test_fresh_processes.py $(ARGS)

# Train each algorithm on its task with five seeds: the table in docs/benchmarks.md. It takes hours; ARGS='"PPO Cart" --seeds 1' a minute.
learn: $(READY)
	$(BIN)/python -m benchmarks.solving --write solving.md $(ARGS)

check: $(READY) browser
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright
	$(BIN)/lint-imports
	$(PYTEST) $(ARGS)

# The tests of the page of a data set need a browser. Install Debian's Chromium if there is none. Without a browser these tests are skipped.
# apt-get runs without questions, and waits if another process holds its lock.
browser:
	@which chromium chromium-browser google-chrome 2>/dev/null | grep -q . \
		|| $(APT) install chromium </dev/null >/dev/null 2>&1 \
		|| ($(APT) update && $(APT) install chromium) </dev/null >/dev/null 2>&1 \
		|| echo "no Chromium here, and apt-get could not install it: tests of the page are skipped"

format: $(READY)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# Write the list of public names that the tests compare with.
api: $(READY)
	$(BIN)/python -m tests.test_house

bench: $(BENCH_READY)
	.venv-bench/bin/python -m benchmarks $(ARGS)

# Tests and benchmarks on a GPU, in eight minutes. ARGS='--device cpu --small' checks the script without one.
gpu: $(BENCH_READY)
	.venv-bench/bin/python -m benchmarks.gpu $(ARGS)

# The site is built in build/site. Every warning is an error. Serve it with: python -m http.server -d build/site
docs: $(DOCS_READY)
	.venv-docs/bin/python docs/site/generate.py
	NO_MKDOCS_2_WARNING=1 .venv-docs/bin/mkdocs build -f build/mkdocs.yml
	.venv-docs/bin/python docs/site/check.py

$(READY): pyproject.toml constraints.txt
	$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv .venv
	$(BIN)/python $(PIP) -e '.[dev]'
	touch $@

$(BENCH_READY): pyproject.toml constraints.txt
	.venv-bench/bin/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv .venv-bench
	.venv-bench/bin/python $(PIP) -e '.[bench]'
	touch $@

$(DOCS_READY): pyproject.toml constraints.txt
	.venv-docs/bin/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv .venv-docs
	.venv-docs/bin/python $(PIP) 'mkdocs==1.6.*' 'mkdocs-material==9.*' 'mkdocstrings[python]' ruff
	touch $@

$(LOWEST_READY): pyproject.toml constraints.txt tests/lowest_versions.py
	.venv-lowest/bin/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv .venv-lowest
	$(PYTHON) -m tests.lowest_versions $(LOWEST_EXTRAS) > .venv-lowest/requirements.txt
	.venv-lowest/bin/python -m pip --no-input install --quiet -r .venv-lowest/requirements.txt
	touch $@

clean:
	rm -rf .venv .venv-bench .venv-docs .venv-lowest build dist *.egg-info .pytest_cache .ruff_cache .hypothesis .import_linter_cache
