# Two commands do everything, set-up included, on a machine with Python >= 3.11 and pip:
#   make sweep   the main job: four strategies on the reference engine with the tiny models, on this CPU, no network
#   make test    style, types and tests
PYTHON ?= python3
VENV ?= .venv
RUN := $(VENV)/bin/python

.PHONY: sweep smoke test lint types unit gpu-test bench env clean

sweep: env
	$(RUN) -m ddbench experiment=ddtree_sweep $(ARGS)

smoke: env
	$(RUN) -m ddbench experiment=smoke $(ARGS)

test: lint types unit

lint: env
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .

types: env
	$(RUN) -m mypy

unit: env
	$(RUN) -m pytest $(ARGS)

gpu-test: env
	$(RUN) -m pytest -m gpu $(ARGS)

bench: env
	$(RUN) benchmarks/tree_build.py
	$(RUN) benchmarks/decode_speed.py

env:
	@$(PYTHON) scripts/bootstrap.py $(VENV)

clean:
	rm -rf $(VENV) outputs .mypy_cache .pytest_cache .ruff_cache .hypothesis
