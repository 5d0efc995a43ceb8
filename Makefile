# make demo | make test | make build: each installs what is missing first. `make help` lists the rest.

# Python 3.11 or later; the environment made with it is .venv.
PYTHON ?= python3
# Arguments of pip install, for example --extra-index-url URL for PyTorch's CPU build.
PIP_ARGS ?=
BUILD ?= build
# A file that includes torch's headers takes up to 1.5 GB to compile.
CORES := $(shell nproc)
GIGABYTES := $(shell awk '/MemAvailable/ {print int($$2 / 1.5e6)}' /proc/meminfo)
JOBS ?= $(shell echo $$(( $(GIGABYTES) < 1 ? 1 : $(GIGABYTES) < $(CORES) ? $(GIGABYTES) : $(CORES) )))

PACKAGES := cmake ninja-build ccache libopenmpi-dev openmpi-bin nlohmann-json3-dev libgtest-dev \
            libgmock-dev libcli11-dev zlib1g-dev libgoogle-perftools-dev
PACKAGES += $(shell $(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || echo python3-venv)
PACKAGES += $(shell command -v c++ >/dev/null || echo g++)

# With a LibTorch of your own, named by CMAKE_PREFIX_PATH, the build leaves .venv alone.
OWN_TORCH := $(firstword $(foreach p,$(subst ;, ,$(subst :, ,$(CMAKE_PREFIX_PATH))), \
  $(wildcard $(p)/share/cmake/Torch/TorchConfig.cmake $(p)/Torch/TorchConfig.cmake)))
VENV := .venv/ready
ifeq ($(OWN_TORCH),)
  TORCH := $(VENV)
  TORCH_PREFIX = $$(.venv/bin/python -c 'import torch; print(torch.utils.cmake_prefix_path)')
  TEST_PYTHON := $(CURDIR)/.venv/bin/python
else
  TORCH_PREFIX := $(CMAKE_PREFIX_PATH)
  TEST_PYTHON := $(if $(wildcard $(VENV)),$(CURDIR)/.venv/bin/python,$(shell command -v $(PYTHON)))
  CHECK_SKIPS := --no-python-torch
endif

# The output of these commands goes to a log, which is shown when one fails.
LOG := $(BUILD)/make.log

.PHONY: build programs deb test test-long fuzz sanitize sanitize-torch bench bench-check demo clean format install-packages help
.DEFAULT_GOAL := build

build: $(BUILD)/build.ninja
	@cmake --build $(BUILD) -j $(JOBS)

programs: $(BUILD)/build.ninja
	@scripts/step.sh $(LOG) "Building pipewright and pipewright-run" \
	  cmake --build $(BUILD) -j $(JOBS) --target pipewright pipewright-run

# Also made anew when the environment or the presets change; ninja sees to everything else.
$(BUILD)/build.ninja: $(TORCH) CMakePresets.json | install-packages
	@scripts/step.sh $(LOG) "Configuring" \
	  cmake --preset release -B $(BUILD) -DCMAKE_PREFIX_PATH="$(TORCH_PREFIX)" \
	  -DPIPEWRIGHT_PYTHON="$(TEST_PYTHON)"
	@touch $@

# A Debian package with both programs and their LibTorch, in $(BUILD).
deb: programs
	@scripts/step.sh $(LOG) "Packing $(BUILD)/pipewright_*.deb" \
	  cpack --config $(BUILD)/CPackConfig.cmake -B $(BUILD)

install-packages:
	@LOG=$(LOG) scripts/install.sh $(PACKAGES)

$(VENV): requirements.txt | install-packages
	@scripts/step.sh $(LOG) "Installing PyTorch into .venv" scripts/venv.sh $(PYTHON) $(PIP_ARGS)

test: build
	@tests/run.sh $(BUILD) $(JOBS) $(CHECK_SKIPS)

# Everything, with what takes long; the result is written to docs/internals/test-long.txt.
test-long: build sanitize sanitize-torch
	@PIPEWRIGHT_LONG=1 tests/run.sh $(BUILD) $(JOBS) $(CHECK_SKIPS) | tee $(BUILD)/test-long.txt; \
	  status=$${PIPESTATUS[0]}; tests/record_long.sh $(BUILD)/test-long.txt docs/internals/test-long.txt; \
	  exit $$status
test-long: SHELL := /bin/bash

# The readers of files on RUNS changes of real ones each, guided by coverage. What reached something
# new then runs under the sanitizers, with RUNS/50 changes more: they take fifty times as long.
RUNS ?= 1000000
FUZZ_BUILD = cmake -S . -G Ninja -DPIPEWRIGHT_TORCH=OFF -DPIPEWRIGHT_MPI=OFF -DPIPEWRIGHT_FUZZ=ON
fuzz: install-packages
	@$(FUZZ_BUILD) -B build-fuzz -DPIPEWRIGHT_FUZZ_SANITIZE= && \
	  cmake --build build-fuzz -j $(JOBS) --target fuzzers
	@$(FUZZ_BUILD) -B build-fuzz-asan && cmake --build build-fuzz-asan -j $(JOBS) --target fuzzers
	@tests/fuzz/run.sh build-fuzz build-fuzz-asan $(RUNS)

# Tests everything that needs neither torch nor MPI under asan, and the executor's threads under tsan.
sanitize: install-packages
	@cmake --preset asan && cmake --build --preset asan -j $(JOBS) && ctest --preset asan
	@cmake --preset tsan && cmake --build --preset tsan -j $(JOBS) --target exec_tests && \
	  ctest --preset tsan -R '^exec$$'

# Whole runs under the address and undefined-behavior sanitizers.
sanitize-torch: build
	@cmake --preset asan-torch -DCMAKE_PREFIX_PATH="$(TORCH_PREFIX)" && \
	  cmake --build --preset asan-torch -j $(JOBS) --target pipewright-run runtime_tests && \
	  tests/sanitize_torch.sh $(BUILD) build-asan-torch $(TEST_PYTHON)

demo: programs $(VENV)
	@examples/gpt/demo.sh $(BUILD)

# PARTS: some of executor host transport training_step predictions layers start compile growth offload.
bench: build $(VENV)
	@bench/run.sh $(BUILD) $(PARTS)

# Checks that ratios are within the spread of those stored in bench/results.
bench-check: build $(VENV)
	@test -f bench/results/summary.json || { echo "nothing is stored in bench/results: make bench" >&2; exit 1; }
	@rm -rf $(BUILD)/bench-results
	@BENCH_RESULTS=$(BUILD)/bench-results bench/run.sh $(BUILD) $(or $(PARTS),quick)
	@.venv/bin/python -B bench/check.py bench/results/summary.json $(BUILD)/bench-results/summary.json

format:
	@git ls-files '*.cc' '*.h' | xargs clang-format -i

clean:
	rm -rf build build-* .venv/ready

help:
	@echo "make build      compile into $(BUILD)/ (with .venv for PyTorch)"
	@echo "make programs   only pipewright and pipewright-run"
	@echo "make demo       export, compile and train a small GPT on 4 ranks, beside PyTorch"
	@echo "make deb        a Debian package of both programs, with LibTorch, in $(BUILD)/"
	@echo "make test       build and run the tests"
	@echo "make test-long  the tests with the long ones; sanitizers"
	@echo "make sanitize   the parts without torch under address, undefined and thread sanitizers"
	@echo "make sanitize-torch  whole runs under address and undefined"
	@echo "make fuzz       RUNS (a million) changed files for each reader"
	@echo "make bench      measure; PARTS=\"training_step start\" only these"
	@echo "make bench-check  measure, and compare with the stored ratios"
	@echo "make format     clang-format"
	@echo "make clean      remove the build folders"
	@echo "Variables: PYTHON, PIP_ARGS (pip install's arguments), BUILD, JOBS; CMAKE_PREFIX_PATH names"
	@echo "a LibTorch of your own."
