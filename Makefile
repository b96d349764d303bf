# Everything a newcomer needs: `make demo`, then `make test`. Nothing is installed outside this
# checkout and the cache folder (MUSTER_CACHE, ~/.cache/muster unless set).

SHELL := /bin/bash
PYTHON ?= python3
MUSTER_CACHE ?= $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/muster
export MUSTER_CACHE
export UV_CACHE_DIR := $(MUSTER_CACHE)/uv
export UV_PYTHON_DOWNLOADS := never
# `make test AIRFLOW=3.4` has the other Airflow that muster supports, in an environment of its own, .venv-3.4.
AIRFLOW :=
AIRFLOW_34 := 3.4.0b2
VENV := .venv$(if $(AIRFLOW),-$(AIRFLOW))
LOCK := requirements$(if $(AIRFLOW),-airflow-$(AIRFLOW)).txt
BIN := $(VENV)/bin
# Every process of Airflow and of a job imports muster: without bytecode each would compile it again.
unexport PYTHONDONTWRITEBYTECODE
READY := $(VENV)/.ready
PYTEST := $(BIN)/python -m tests.session
# What each needs more than this machine and this folder has a command of its own.
HERE := not soak and not horovod and not gpu and not cluster and not chart and not nfs and not releases and not data

# The fast tests commit thousands of times, and each commit waits for its disk. Where memory has room for their files, these
# are there: no power is cut. `make check IN_MEMORY=` has them on the disk.
IN_MEMORY = $(shell awk '$$2 == "/dev/shm" && $$4 !~ /noexec/ {found = 1} END {exit !found}' /proc/mounts && \
  df -k --output=avail /dev/shm | awk 'NR == 2 && $$1 > 8 * 2^20 {print "TMPDIR=/dev/shm"}')

.DEFAULT_GOAL := help
.PHONY: help setup demo up test test-airflow-34 other-airflow check fast lint test-unpatched soak cluster-up cluster-down test-cluster bench compiler test-nightly test-horovod test-gpu test-chart test-nfs test-releases test-data lock wheel clean

help:  ## Say what can be made
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-14s %s\n", $$1, $$2}'

$(READY): $(LOCK) pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))' || { echo "muster needs Python 3.11, 3.12 or 3.13, $(PYTHON) is $$($(PYTHON) --version 2>&1): set PYTHON=python3.11"; exit 1; }
	@echo "setting up $(VENV) (once; a minute or two with an empty cache)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements-uv.txt
	@$(BIN)/uv pip sync --quiet --compile-bytecode --require-hashes --python $(BIN)/python $(LOCK)
	@$(BIN)/uv pip install --quiet --no-deps --no-build-isolation --python $(BIN)/python --editable .
	@touch $@

setup: $(READY)  ## Make .venv, which holds the command muster: . .venv/bin/activate
	@echo "muster is set up: . $(BIN)/activate"

demo: $(READY)  ## Run the reference pipeline, from real rows to a served prediction
	@$(BIN)/muster demo

up: $(READY)  ## Airflow on 127.0.0.1:8080, or PORT=…, with the Dags of dags/, until Ctrl-C
	@$(BIN)/muster up $(if $(PORT),--port $(PORT))

# Files with slow tests come first (tests/conftest.py): begun last, one long file keeps a core idle. Six at a time on two
# cores, since most of the slow tests wait for processes of Airflow and of jobs.
test: $(READY)  ## Run the tests, slow ones included (some 12 minutes on two cores, warm)
	$(PYTEST) -m "$(HERE) and not nightly" -n 6 --dist loadfile --no-loadscope-reorder

test-nightly: $(READY)  ## Long and rare forms of what `make test` shows, on this machine: every page of docs/ typed, many kills
	$(PYTEST) -m "$(HERE) and nightly" -n 4 --dist loadfile --durations=15
	@$(MAKE) --no-print-directory test-unpatched

# What runs Airflow in a process of muster's. Sixteen minutes on two busy cores.
test-unpatched: $(READY)  ## `muster run` and `muster up` with other packages as they are, MUSTER_PATCHES=off
	MUSTER_PATCHES=off $(PYTEST) -m "$(HERE) and not nightly" -n 4 --dist loadfile tests/unit/airflow tests/unit/ext/up \
	  tests/airflow/test_run.py tests/airflow/test_up.py tests/cli/test_run.py tests/cli/test_warm.py

# Beside each other: mypy keeps one core busy.
check: $(READY)  ## Lint, types, layers and the fast tests; of one extension: make check EXT=search
	@$(MAKE) --no-print-directory -j 2 --output-sync=target lint fast

fast: $(READY)  ## The fast tests, or some of them: make fast T=tests/unit/cli, EXT=search
	$(IN_MEMORY) $(PYTEST) -q -m "not slow and $(HERE)" -n 4 --dist loadfile \
	  -o tmp_path_retention_policy=failed -o tmp_path_retention_count=1 $(T) $(EXT:%=tests/unit/ext/%)

lint: $(READY)  ## Lint, types and layers
	$(BIN)/ruff check --no-cache .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

# What differs between two Airflows: their tables, the API in a run's process, assets, clears, resumes, plans. Some four minutes.
test-airflow-34:  ## What differs between Airflow 3.3 and 3.4, on 3.4
	@$(MAKE) --no-print-directory AIRFLOW=3.4 other-airflow

other-airflow: $(READY)
	$(PYTEST) -m "$(HERE)" -n 2 --dist loadfile tests/unit/airflow tests/unit/ext/page tests/unit/ext/up --ignore tests/unit/airflow/authoring/test_values.py tests/airflow/test_interruption.py tests/airflow/test_plan.py tests/airflow/test_triggering.py tests/airflow/test_assets.py tests/airflow/test_foreign_tasks.py tests/airflow/test_links.py tests/airflow/test_listener.py tests/airflow/test_fab.py "tests/airflow/test_deferral.py::test_a_search_that_is_marked_failed_stops_its_trials_and_goes_on_when_it_is_cleared"

soak: $(READY)  ## Many faults and long loads, those of a cluster too (root; some hours)
	$(PYTEST) -o faulthandler_timeout=0 -m "soak and not cluster and not data"
	$(PYTEST) -o faulthandler_timeout=0 -m "soak and data and not cluster" -n 4 --dist=load -p tests.cluster.figures
	$(BIN)/python -m tests.cluster test --clusters 2 -o faulthandler_timeout=0 -m "soak and cluster" --dist=load

cluster-up: $(READY)  ## Bring up a Kubernetes for the tests (root; the first time builds its programs, 15 to 25 minutes)
	@$(BIN)/python -m tests.cluster up

cluster-down: $(READY)  ## Clear it away, whatever is left of it
	@$(BIN)/python -m tests.cluster down

test-cluster: $(READY)  ## The tests that need it, inside two of it; each goes down afterwards unless it was up before
	@$(BIN)/python -m tests.cluster test --clusters 2

compiler:
	@command -v $${CXX:-c++ g++ clang++} >/dev/null || { echo "Horovod is built from source and there is no C++ compiler (\$$CXX, c++, g++, clang++): install one, such as Debian's g++, and run \`make test-horovod\` again"; exit 1; }

test-horovod: compiler $(READY)  ## Build Horovod once (needs a C++ compiler) and run a gang with it
	$(PYTEST) -m horovod

# On a machine with a card, which may have neither a network nor .venv. It says what is missing.
test-gpu:  ## The tests that need a GPU, with a Python whose torch sees it (MUSTER_TEST_INTERPRETER)
	@$(if $(wildcard $(BIN)/python),$(BIN)/python,$(PYTHON)) -m tests.gpu

test-chart: $(READY)  ## Build helm, kubeconform and promtool once, and look at what the chart makes
	$(PYTEST) -m chart

test-nfs: $(READY)  ## The store's tests on what an NFS client sees (root, FUSE)
	$(PYTEST) -m "nfs and not soak" -n 2 --dist loadfile

test-releases: $(READY)  ## This release beside earlier ones, which are built of the repository's history
	$(PYTEST) -m "releases and not soak" -n 2 --dist loadfile

test-data: $(READY)  ## Spark, Ray and Dask as gangs, real Kafka and object stores (Debian's maven and npm; all are built once), the whole year of flights
	$(PYTEST) -m "data and not cluster and not soak $(LESS)" -n 3 --dist loadfile --durations=15 -p tests.cluster.figures

bench: $(READY)  ## Ratios against the same stages run by hand, side by side
	$(BIN)/python -m benchmarks

lock: $(READY)  ## Resolve every lock again from its .in file
	@for folder in . images/*/ starter/dags/starter/images/*/ tests/cluster/go/ tests/contract/s3/ tests/ingest/kafka/ tests/serving/triton/ tests/serving/hugging-face/ benchmarks/mlserver/; do \
	  test -f $$folder/requirements.in || continue; \
	  echo "$$folder"; \
	  $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
	    --no-header --no-annotate $$folder/requirements.in -o $$folder/requirements.txt || exit 1; \
	done
	@sed 's/^apache-airflow==.*/apache-airflow==$(AIRFLOW_34)\napache-airflow-providers-fab/' requirements.in | $(BIN)/uv pip compile --quiet --universal \
	  --python-version 3.11 --generate-hashes --no-emit-index-url --no-header --no-annotate - -o requirements-airflow-3.4.txt
	@grep -E -A40 '^uv==' requirements.txt | awk 'NR==1 || /^    --hash/ {print; next} {exit}' > requirements-uv.txt

wheel: $(READY)  ## Build the wheel into dist/
	$(BIN)/uv build --wheel --no-build-isolation --python $(BIN)/python --out-dir dist .

clean:  ## Remove the environment and the demo's home, keep the caches
	chmod -R u+w .muster 2>/dev/null; rm -rf .venv .venv-3.4 .muster dist .mypy_cache .ruff_cache .pytest_cache
