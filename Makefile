PYTHON ?= python3
# `make test TORCH=2.6.0` sets up and uses an environment of its own with that torch, and
# `make test LATEST=1` one with the newest of everything, whatever constraints.txt says.
TORCH ?=
LATEST ?=
VENV := .venv$(TORCH:%=-torch-%)$(LATEST:%=-latest)
BIN := $(VENV)/bin
GPUS ?= 1,2
STRATEGY ?= dp,ddp
CASES ?= mnist_cnn resnet50

.PHONY: bench gpu-check test test-all test-schedulers golden mutants check validation setup clean clean-results

# The main job: measure two of the shipped cases on 1 and 2 GPUs (CPU ranks where there is no GPU),
# mnist_cnn by dp and ddp and resnet50 by ddp. CASES="gpt mnist_net" takes others, CASES=all every
# one, and STRATEGY=fsdp,pipeline,lightning the other strategies; each takes as long again.
SHIPPED := $(patsubst bench_cases/test_%.py,%,$(wildcard bench_cases/test_*.py))
UNKNOWN = $(filter-out all $(SHIPPED),$(CASES))
ifneq ($(and $(filter bench,$(MAKECMDGOALS)),$(UNKNOWN)),)
$(error there is no case $(UNKNOWN); choose from all $(SHIPPED))
endif
bench: $(VENV)/.measures
	@$(BIN)/pytest $(if $(filter all,$(CASES)),bench_cases,$(CASES:%=bench_cases/test_%.py)) \
	    --gpus $(GPUS) --strategy $(STRATEGY)
	@echo "next: a baseline and a verdict (docs/start.md)"

# Proves the path through CUDA or ROCm on a machine with one GPU; the report is .gpuscale/gpu-check/report.md.
gpu-check: $(VENV)/.measures
	$(BIN)/python ci/gpu_check.py

# Where bytecode is not to be written, each worker and session compiles and rewrites all modules anew.
test test-all test-schedulers: export PYTHONDONTWRITEBYTECODE =

# worksteal gives each worker tests that lie together: the sessions that tests of a file share are
# then measured once, and not by every worker.
test: setup
	$(BIN)/python -m pytest tests -n 4 --dist worksteal \
	    -m "not alone and not thorough and not scheduler"

# Slurm, Grid Engine and Open MPI for real. Without them, or not as root, these tests are skipped.
test-schedulers: setup
	$(BIN)/python -m pytest tests -m scheduler

test-all: setup
	$(BIN)/python -m pytest tests -n 4 --dist worksteal -m "not alone and not scheduler"
	$(BIN)/python -m pytest tests -m "alone or scheduler"

# What people read, as tests/golden/expected keeps it: written anew, to be looked at with git diff.
golden: setup
	rm -rf tests/golden/expected
	GPUSCALE_RENEW_GOLDEN=1 $(BIN)/python -m pytest -q tests/test_golden.py

# Do the tests notice one changed operator or number of the committed code? All of it takes hours, so
# `make mutants MUTANTS=statistics SHARE=0.1` draws some of one of the groups in tests/mutants, and
# with SEED=2 others.
MUTANTS ?= judging diagnose statistics measuring outcomes reading
SHARE ?= 1
SEED ?= 1
mutants: $(MUTANTS:%=mutants-%)

mutants-%: setup
	rm -rf build/mutants/$*
	mkdir -p build/mutants/$*
	git archive HEAD | tar -x -C build/mutants/$*
	cd build/mutants/$* && export PATH="$(CURDIR)/$(BIN):$$PATH" PYTHONPATH="$$PWD" && \
	cosmic-ray init tests/mutants/$*.toml session.sqlite && \
	cr-filter-operators session.sqlite tests/mutants/operators.toml && \
	python tests/mutants/drawn.py session.sqlite $(SHARE) $(SEED) && \
	cosmic-ray exec tests/mutants/$*.toml session.sqlite && \
	cr-report --surviving-only --show-diff session.sqlite && \
	cr-rate --fail-over 10 session.sqlite

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -q tests/test_layers.py

# Simulates again how often the judgement errs, and writes the page anew.
validation: setup
	$(BIN)/python tests/validation/page.py --comparisons 10000 --page docs/evidence/validation.md

setup: $(VENV)/.installed

# uv installs in a minute what takes pip four. It knows nothing of pip's settings, such as an index
# of the site's own: where it fails, pip tries. Compiling as pip does halves each later start of
# torch where PYTHONDONTWRITEBYTECODE is set.
# What measures, draws and judges is enough to try it; `make setup` adds what tests and checks need.
EXTRAS = $(if $(filter %.measures,$@),amd$(COMMA)lightning$(COMMA)plots,dev)
COMMA := ,
INSTALLED = --editable '.[$(EXTRAS)]' $(TORCH:%=torch==%)
ifndef LATEST
INSTALLED += --constraint $(VENV)/constraints.txt
endif
$(VENV)/.measures $(VENV)/.installed: pyproject.toml constraints.txt
	@echo "installing into $(VENV): torch and its CUDA libraries, 1 to 4 minutes and 6 GB at first"
	@$(PYTHON) -m venv $(VENV)
	@sed -n '$(if $(TORCH),/^# torch/q;)p' constraints.txt >$(VENV)/constraints.txt
	@$(BIN)/python -m pip install --disable-pip-version-check uv && \
	$(BIN)/uv pip install --compile-bytecode --python $(BIN)/python $(INSTALLED) || \
	$(BIN)/python -m pip install --disable-pip-version-check $(INSTALLED)
	@# For this folder, pytest would rewrite the assertions of every module of gpuscale.
	@rm -rf gpuscale.egg-info
	@touch $(VENV)/.measures $@

# What can be made again; results and nights are not among it.
clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache

# Deletes all results and nights of this folder, which can only be measured again.
clean-results:
	@test -d .gpuscale || { echo "there are no results here" >&2; exit 1; }
	@find .gpuscale -name '*.jsonl'; du -sh .gpuscale
	@test -n "$(YES)" || { echo "to delete all this: make clean-results YES=1" >&2; exit 1; }
	rm -rf .gpuscale
