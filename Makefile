# make            list the targets
# make quickstart install, train and print a table
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
DEV := $(VENV)/.installed-dev
INSTALL := $(if $(shell command -v uv),uv pip install -q --python $(BIN)/python,$(BIN)/python -m pip install -q --disable-pip-version-check --no-compile) -c constraints.txt
# Compile bytecode on all cores (pip uses one). Errors are ignored: some packages have .py files that are not Python.
COMPILE := $(BIN)/python -m compileall -qq -j 0 $(VENV)/lib || true
ATTN ?= cur_abs
TASK ?= listops
BUDGET ?= quick
PEERS := transformers nystrom-attention linformer local-attention performer-pytorch reformer-pytorch \
	h-transformer-1d opencv-python-headless
SWEEP ?= selection
RUNS ?= runs
WIDTH ?= 6.75

# Otherwise glibc returns every large tensor to the system and clears new pages at the next step.
export MALLOC_MMAP_MAX_ ?= 0
export MALLOC_TRIM_THRESHOLD_ ?= 99999999999

.DEFAULT_GOAL := help
.PHONY: help setup quickstart data train sweep report print test test-fast test-all test-peers test-browser test-launchers docs lint bench bench-peers gpu-check clean

help: ## show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 16

setup: $(DEV) ## install into .venv, with the test tools (TORCH_INDEX=<url> for another build of torch)

# An index of torch has few versions of its dependencies, so their pins apply in the second step. An environment made by
# uv has no pip.
$(STAMP): pyproject.toml constraints.txt
	@echo "installing into $(VENV)"
	@test -x $(BIN)/python || $(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "Python 3.11 or later is needed: make setup PYTHON=<path>")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -c 'import pip' 2>/dev/null || $(BIN)/python -m ensurepip
	$(if $(TORCH_INDEX),$(subst -c constraints.txt,,$(INSTALL)) --index-url $(TORCH_INDEX) "$$(grep '^torch==' constraints.txt)")
	$(INSTALL) torch -e .
	$(COMPILE)
	@touch $@

$(DEV): $(STAMP)
	$(INSTALL) -e '.[dev]'
	$(COMPILE)
	@touch $@

quickstart: BUDGET := $(if $(filter file,$(origin BUDGET)),quickstart,$(BUDGET))
quickstart: $(STAMP) ## install, train five seeds of CUR and of its control in parallel at a small budget, print the table
	$(BIN)/python -m lra.train -m task=$(TASK) attn=$(ATTN),mean 'seeds=[0,1,2],[3,4]' budget=$(BUDGET) hydra/launcher=joblib trainer.threads=1 data.pad=none
	@$(BIN)/python -m lra.report

data: $(STAMP) ## prepare the data of TASK at BUDGET
	$(BIN)/python -m data_prep task=$(TASK) budget=$(BUDGET)

train: $(STAMP) ## train ATTN on TASK at BUDGET, five seeds
	$(BIN)/python -m lra.train task=$(TASK) attn=$(ATTN) budget=$(BUDGET)

sweep: BUDGET := $(if $(filter file,$(origin BUDGET)),paper,$(BUDGET))
sweep: $(STAMP) ## SWEEP over TASKS (default: all of its tasks) at BUDGET (paper) with LAUNCHER; resumes; PLAN=true only prints the plan
	$(BIN)/python -m lra.sweep sweep=$(SWEEP) budget=$(BUDGET) \
		$(if $(LAUNCHER),hydra/launcher=$(LAUNCHER)) $(if $(TASKS),'tasks=[$(TASKS)]') $(if $(PLAN),plan=$(PLAN))

report: $(STAMP) ## print all runs next to the papers' numbers, and write the page runs/report
	$(BIN)/python -m lra.report

print: $(STAMP) ## tables and figures as runs/print/main.pdf by pdflatex (RUNS, STUDY, WIDTH in inches, SHOW=<names of tables and figures>)
	$(BIN)/python -m lra.report runs=$(RUNS) out=runs/print width=$(WIDTH) $(if $(STUDY),study=$(STUDY)) $(if $(SHOW),'show=[$(SHOW)]')
	cd runs/print && pdflatex -interaction=batchmode main.tex && pdflatex -interaction=batchmode main.tex

test: setup lint ## the tests, in parallel, without the slow ones
	$(BIN)/python -m pytest -q -n auto --dist worksteal -m "not slow and not gpu and not peers and not browser and not compiles" --timeout=240 --durations=10
	LRA_CHECK_SHAPES=0 $(BIN)/python -m pytest -q -m "compiles and not slow and not gpu" --timeout=240 tests/ops tests/train

test-fast: setup ## mathematics, mechanisms and models on short sequences, without triton's interpreter
	$(BIN)/python -m pytest -q -n auto --dist worksteal -m "not slow and not gpu and not peers" tests/ops tests/attention tests/model \
		-k "not flashcur and not triton and not task_lengths"

test-all: setup lint ## every test that needs no other package and no GPU
	$(BIN)/python -m pytest -q -n auto --dist worksteal -m "not gpu and not peers and not browser and not compiles"
	LRA_CHECK_SHAPES=0 $(BIN)/python -m pytest -q -m "compiles and not gpu" tests/ops tests/train

test-peers: setup ## mechanisms and Pathfinder against public implementations, which are installed into .venv
	$(INSTALL) -e '.[hf]' $(PEERS)
	$(BIN)/python -m pytest -q -m "peers and not compiles"
	LRA_CHECK_SHAPES=0 $(BIN)/python -m pytest -q -m "peers and compiles"

test-browser: setup ## the report's page in a headless Chromium (LRA_CHROMIUM=<path>), driven by playwright
	$(INSTALL) playwright
	$(BIN)/python -m pytest -q -rs -m browser tests/report/test_browser.py

test-launchers: setup ## sweeps with the launchers for SLURM (run on this machine) and Ray, which are installed into .venv
	$(INSTALL) -e '.[slurm,ray]'
	$(BIN)/python -m pytest -q -rs -k "launcher or submitit or ray" tests/sweep

docs: setup ## build the manuals and the API as a site: dist/site/index.html
	$(INSTALL) -e '.[docs]'
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

lint: setup ## ruff, spelling, types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/codespell
	$(BIN)/python -m mypy

bench: setup ## time data preparation, a training step and every mechanism
	$(BIN)/python -m data_prep.bench
	$(BIN)/python -m lra.bench preset=cpu
	$(BIN)/python -m lra.bench preset=growth

bench-peers: setup ## time and memory of mechanisms next to public implementations, which are installed into .venv
	$(INSTALL) -e '.[hf]' $(PEERS)
	$(BIN)/python -m lra.bench.peers

gpu-check: MINUTES ?= 8
gpu-check: setup ## on a GPU, for MINUTES (8): tests, the papers' speed tests, a profile, then trainings; resumes
	@$(BIN)/python -m lra.bench.gpu_check minutes=$(MINUTES)

clean: ## remove the virtual environment and caches; data and runs stay
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache
