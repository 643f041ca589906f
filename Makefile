# One command per job; the same here and in CI.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

# What tells within a minute whether a change broke something.
QUICK := tests/algorithms tests/plans tests/training/parameters tests/concurrency/check tests/runtime/engines/test_each_engine.py tests/test_face.py
# Most tests wait for processes, or keep one core busy; on two cores four at a time take longer than three.
PARALLEL := -n 3 --dist worksteal
# Without bytecode each of the hundred processes that tests start would compile a thousand files.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: demo test tests quick oldest soak check style lint types docs release bench clean

demo: $(VENV)/.train          ## environment, then a comparison ending in a table and a page
	$(BIN)/paceline compare digits --plans sequential,ddp,ring,downpour --workers 2

test: lint                    ## everything CI runs: a quarter of an hour on two cores
	$(MAKE) --no-print-directory -j2 types tests  # side by side: mypy keeps one core busy

tests: $(VENV)/.ready
	$(BIN)/python -m pytest -m "not soak" $(PARALLEL)

quick: $(VENV)/.ready         ## what to run while working: a minute
	$(BIN)/python -m pytest -q -m "not soak" $(PARALLEL) $(QUICK)

oldest:                       ## the quick tests with the oldest PyTorch that pyproject.toml allows (Python 3.10 to 3.12)
	test -x $(VENV)-oldest/bin/python || $(PYTHON) -m venv $(VENV)-oldest
	$(VENV)-oldest/bin/python -m pip install -q -c .ci/oldest.txt -e '.[train]' \
		pytest pytest-timeout pytest-xdist hypothesis jsonschema psutil
	$(VENV)-oldest/bin/python -m pytest -q -m "not soak" -W "ignore:TypedStorage is deprecated:UserWarning" \
		-W 'ignore:You are using `torch.load`:FutureWarning' $(PARALLEL) $(filter-out tests/concurrency/check,$(QUICK))

soak: $(VENV)/.ready          ## exhaustive sweeps, soaks and rare cases: what `make test` leaves out
	$(BIN)/python -m pytest -m soak $(PARALLEL)

check: style                  ## style, types, architecture
	$(BIN)/python -m pytest -q tests/test_architecture.py

style: lint types

lint: $(VENV)/.ready
	$(BIN)/ruff check src tests examples benchmarks docs
	$(BIN)/ruff check --preview --select PLW1514 src  # an encoding for every file, whatever the locale
	$(BIN)/ruff format --check src tests examples benchmarks docs

types: $(VENV)/.ready
	$(BIN)/mypy
	$(BIN)/paceline check src

docs: $(VENV)/.ready          ## the site, in site/; a warning is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict -d site

release: $(VENV)/.ready       ## wheel and sdist in dist/, checked, and the wheel tried in an empty environment
	.ci/release $(BIN)/python

bench: $(VENV)/.ready         ## the measured claims, at full size (most of an hour)
	$(BIN)/python benchmarks/local_speed/run.py
	$(BIN)/python benchmarks/backend/run.py
	$(BIN)/python benchmarks/staying_alive/run.py
	$(BIN)/python benchmarks/survival/run.py --runs 70 --calm 3
	$(BIN)/python benchmarks/replay/run.py
	$(BIN)/python benchmarks/trace_cost/run.py
	$(BIN)/python benchmarks/resuming/run.py
	$(BIN)/python benchmarks/checkpoint_cost/run.py
	$(BIN)/python benchmarks/report_page/run.py
	$(BIN)/python benchmarks/embedding_rows/run.py
	$(BIN)/python benchmarks/published-downpour/run.py
	$(BIN)/python benchmarks/staleness/run.py --quick
	$(BIN)/python benchmarks/kernels/run.py
	$(BIN)/python benchmarks/kernels/accuracy.py
	$(BIN)/python benchmarks/kernels/sweep.py
	$(BIN)/python benchmarks/pipelines/run.py
	$(BIN)/python benchmarks/pipelines/memory.py
	$(BIN)/python benchmarks/pipelines/worlds.py
	$(BIN)/python benchmarks/stale-pipelines/run.py
	$(BIN)/python benchmarks/library/run.py
	$(BIN)/python benchmarks/ranks/run.py
	$(BIN)/python benchmarks/wire/run.py
	$(BIN)/python benchmarks/wire/hostile.py
	$(BIN)/python benchmarks/checker/installed.py
	$(BIN)/python benchmarks/checker/guided.py

# What training needs, and in .ready what all tests and pages do. Python compiles a module when it is first imported: most
# never are.
$(VENV)/.train: EXTRAS := train
$(VENV)/.ready: EXTRAS := train,dev
$(VENV)/.train $(VENV)/.ready: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q --no-compile -c constraints.txt -e '.[$(EXTRAS)]'
	touch $(VENV)/.train $@

clean:
	rm -rf $(VENV) $(VENV)-oldest runs site dist build .mypy_cache .pytest_cache .ruff_cache
