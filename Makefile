# One command per job; the same here and in CI.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

.PHONY: demo test check docs bench clean

demo: $(VENV)/.ready          ## environment, then a comparison ending in a table and a page
	$(BIN)/paceline compare digits --plans sequential,ddp,ring,downpour --workers 2

test: $(VENV)/.ready check    ## everything CI runs
	$(BIN)/python -m pytest

check: $(VENV)/.ready         ## style, types, architecture
	$(BIN)/ruff check src tests examples benchmarks docs
	$(BIN)/ruff format --check src tests examples benchmarks docs
	$(BIN)/mypy
	$(BIN)/paceline check src
	$(BIN)/python -m pytest -q tests/test_architecture.py

docs: $(VENV)/.ready          ## the site, in site/; a warning is an error
	$(BIN)/mkdocs build --strict -d site

bench: $(VENV)/.ready         ## the measured claims, at full size (most of an hour)
	$(BIN)/python benchmarks/local_speed/run.py
	$(BIN)/python benchmarks/backend/run.py
	$(BIN)/python benchmarks/staying_alive/run.py
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
	$(BIN)/python benchmarks/checker/installed.py
	$(BIN)/python benchmarks/checker/guided.py

$(VENV)/.ready: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q -c constraints.txt -e '.[train,dev]'
	touch $@

clean:
	rm -rf $(VENV) runs site .mypy_cache .pytest_cache .ruff_cache
