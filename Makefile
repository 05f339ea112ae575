# `make` lists the targets. On a machine that has its own ready environment (the Neuron DLAMI), name it
# and skip the set-up:  make lab VENV=/opt/aws_neuronx_venv_NAME SETUP=

PYTHON ?= python3
VENV ?= .venv
SETUP ?= setup
PORT ?= 8888
PY := $(VENV)/bin/python
NEXT := .venv-next/bin/python
QUICKSTART := notebooks/00_quickstart.ipynb
NOTEBOOKS = $(wildcard notebooks/*.ipynb)
DOCS := build/docs
# Processes that share the tests: one more than two cores, since browsers and engines often wait.
JOBS ?= 3
SPREAD := -n $(JOBS) --dist worksteal
NBVAL := -p no:cacheprovider --nbval --nbval-current-env --nbval-cell-timeout 120 \
	--nbval-kernel-startup-timeout 120 --nbval-sanitize-with tests/notebooks/nbval_sanitize.cfg

# Notebook kernels inherit these. Threads: spinning OpenMP threads make tiny models 10 times slower on
# a busy machine. One process: Python looks into the engine's queues between two steps. No hub: the
# model ships with the kit. KV cache: vLLM's own CPU worker otherwise claims most of the memory (GiB).
export OMP_NUM_THREADS ?= 1
export VLLM_ENABLE_V1_MULTIPROCESSING ?= 0
export VLLM_LOGGING_LEVEL ?= ERROR
export VLLM_NO_USAGE_STATS ?= 1
export VLLM_CPU_KVCACHE_SPACE ?= 1
export HF_HUB_OFFLINE ?= 1
export PYTHONUNBUFFERED ?= 1

.DEFAULT_GOAL := help
.PHONY: help setup lab demo test nightly test-next conformance lint notebooks docs lock clean

help:  ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):[^#]*## */  make \1\t/' | expand -t 20

setup:  ## make or complete .venv (every target below does it by itself)
	@$(PYTHON) scripts/setup_env.py

lab: $(SETUP)  ## JupyterLab on 127.0.0.1, the quickstart open
	@$(PY) scripts/start_lab.py --port $(PORT) $(QUICKSTART)

demo: $(SETUP)  ## the main job in the terminal: a live run, step by step
	@$(PY) -m neuron_sched_lab demo $(ARGS)

test: $(SETUP)  ## everything that CI runs: lint, tests, docs, notebooks
	$(PY) -m ruff check .
	$(PY) -m pytest $(SPREAD) $(ARGS)
	$(make_docs)
	$(run_notebooks)

nightly: test conformance  ## what takes too long for each commit: vLLM's own tests, broken schedulers
	$(PY) -m tests.scheduler.mutants

lint: $(SETUP)  ## ruff and mypy
	$(PY) -m ruff check .
	$(PY) -m mypy

conformance: $(SETUP)  ## vLLM's own scheduler tests against ours (downloads them once)
	$(PY) -m tests.conformance.run $(ARGS)

# Without triton, torch and the newest vLLM say so on stderr, where the quickstart's stored outputs have
# nothing.
test-next:  ## the newest vLLM, in .venv-next: scheduler suite, vLLM's own tests, quickstart
	@$(PYTHON) scripts/setup_env.py --next
	$(NEXT) -m pytest tests/scheduler $(ARGS)
	$(NEXT) -m tests.conformance.run
	TORCH_LOGS=-torch._library.triton PYTHONWARNINGS=ignore::FutureWarning \
		$(NEXT) -m pytest $(NBVAL) $(QUICKSTART)

# As learners get them, every output compared (a notebook stays with one process: its kernel is there);
# then with the solutions in, where every check must say "solved".
# No cache: pytest would put its folder beside the notebooks.
define run_notebooks
$(if $(NOTEBOOKS),$(PY) -m pytest -n $(JOBS) --dist loadfile $(NBVAL) $(NOTEBOOKS),@echo "no notebooks")
$(PY) -m scripts.run_solved_notebooks --jobs $(JOBS)
endef

notebooks: $(SETUP)  ## run the notebooks, unsolved (stored outputs compared) and solved
	$(run_notebooks)

# A warning (a link to nothing, a default that does not print) is an error.
define make_docs
rm -rf $(DOCS)
$(PY) -m scripts.make_docs $(DOCS)
endef

docs: $(SETUP)  ## the API reference from the docstrings, in build/docs
	$(make_docs)

UV_COMPILE := uv pip compile --quiet --universal --no-python-downloads --no-annotate \
	--custom-compile-command "make lock"

lock:  ## requirements/*.in -> requirements/*.lock (needs uv and a network)
	$(UV_COMPILE) --python-version 3.10 requirements/cpu.in -o requirements/cpu.lock
	$(UV_COMPILE) --python-version 3.11 requirements/next.in -o requirements/next.lock

clean:  ## remove .venv, .venv-next and every cache
	rm -rf .venv .venv-next .pytest_cache .mypy_cache .ruff_cache .hypothesis build *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
	find . -name .ipynb_checkpoints -type d -prune -exec rm -rf {} +
