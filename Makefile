# One word a target: demo, test, lint, slow, ab ARGS="…", reference, locks, clean.
PYTHON ?= python3
BIN := .venv/bin
SOURCES := pyproject.toml setup.py csrc/build.py $(wildcard csrc/*.c csrc/*.h)
# Everything that tools would write to the home folder stays inside the clone.
export DGLBACKEND ?= pytorch
export MPLCONFIGDIR ?= $(CURDIR)/.harness/matplotlib
export TORCHINDUCTOR_CACHE_DIR ?= $(CURDIR)/.harness/inductor
export PLAYWRIGHT_BROWSERS_PATH ?= $(CURDIR)/.harness/browsers

.PHONY: demo test lint slow ab reference locks clean

demo: .venv/core.stamp
	$(BIN)/harness ab subdivision:corner-cache subdivision:corner-passing

test: .venv/all.stamp
	$(BIN)/python -m pytest $(ARGS)

slow: .venv/all.stamp
	$(BIN)/python -m pytest -m slow $(ARGS)

lint: .venv/all.stamp
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

ab: .venv/core.stamp
	$(BIN)/harness ab $(ARGS)

reference: .venv/all.stamp
	$(BIN)/python reports/reference/make.py $(ARGS)

.venv/bin/python:
	$(PYTHON) csrc/toolchain.py
	$(PYTHON) -m venv .venv

.venv/core.stamp: requirements/core.txt $(SOURCES) | .venv/bin/python
	$(PYTHON) csrc/toolchain.py
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements/core.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps -e .
	touch $@

.venv/all.stamp: requirements/all.txt .venv/core.stamp
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements/all.txt
	touch $@

# Locks are made by a compiler (pip install uv first). The CUDA packages that torch's default Linux build asks for are
# left out: a CPU build needs none of them, and pip adds them by itself where the build does.
LOCK := $(BIN)/uv pip compile -q pyproject.toml --python-version 3.11 --no-header --no-annotate --no-emit-index-url \
	--no-emit-find-links --upgrade
CUDA := $(foreach name,cuda-bindings cuda-pathfinder cuda-toolkit triton nvidia-cublas nvidia-cuda-cupti \
	nvidia-cuda-nvrtc nvidia-cuda-runtime nvidia-cudnn-cu13 nvidia-cufft nvidia-cufile nvidia-curand nvidia-cusolver \
	nvidia-cusparse nvidia-cusparselt-cu13 nvidia-nccl-cu13 nvidia-nvjitlink nvidia-nvshmem-cu13 nvidia-nvtx, \
	--no-emit-package $(name))
locks:
	$(LOCK) -o requirements/core.txt
	$(LOCK) --extra test -c requirements/torch.in $(CUDA) -o requirements/all.txt

clean:
	rm -rf .venv .harness build *.egg-info impl/*/*.so
	-git worktree prune
