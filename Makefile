# `make fuzz` and `make test` need Python 3.11+, g++ and make. Everything else is installed into .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/ready
INSTALLED := build/installed
SECONDS_OF_FUZZING ?= 60

.DELETE_ON_ERROR:
.PHONY: fuzz test quick test-long test-cluster test-gpu test-sglang pin-sglang docs lint types imports clean

fuzz: $(READY)
	@echo "== 1/2  The fixed backends, for $(SECONDS_OF_FUZZING) s: they must pass."
	$(BIN)/attnfuzz fuzz --time $(SECONDS_OF_FUZZING)s --jobs 2 --home attnfuzz-out/fixed
	@echo
	@echo "== 2/2  trtllm_mha as it was before its fix in SGLang PR 21649: the bug must be found."
	@$(BIN)/attnfuzz fuzz --backend trtllm_mha@21649-before --examples 2000 --until-finding --home attnfuzz-out/21649-before; \
	status=$$?; echo; \
	case $$status in \
	0) echo "== The known bug was missed."; exit 1;; \
	1) echo "== Both went as they must: the fixed backends pass, and the known bug is found.";; \
	*) exit $$status;; \
	esac

test: lint types imports $(READY)
	$(BIN)/pytest -n 2

# Under a minute, to work with: tests that start no process and draw few cases.
quick: $(READY)
	$(BIN)/pytest -n 2 -m "not slow and not cluster and not long and not sglang"

# Minutes each: workers and jobs that are killed at random, campaigns that are killed and resumed.
test-long: $(READY)
	$(BIN)/pytest -n 2 -m long

# On an NVIDIA GPU; `make test` skips them where there is none. scripts/gpu.sh does this and more without a network.
test-gpu: $(READY)
	$(BIN)/pytest -n 4 -rs tests/gpu

# On a Ray cluster of several nodes on this machine. Ray takes some 400 MB, so it is installed for this alone.
test-cluster: $(READY)
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev,ray]'
	$(BIN)/pytest -m cluster tests/cluster

# Releases of SGLang, which are downloaded once, without what they depend on. Triton alone takes 1 GB.
test-sglang: $(READY)
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev,sglang]'
	$(BIN)/pytest -n 2 -m sglang tests/sglang

# What releases ask without being told, after it was looked at: records a run of the tests, in which nothing is refused.
pin-sglang: $(READY)
	rm -rf build/asked
	mkdir -p build/asked
	ATTNFUZZ_SGLANG_ASKED=$(CURDIR)/build/asked $(BIN)/pytest -n 2 -m sglang tests/sglang
	$(BIN)/python -m attnfuzz.kernels.sglang.repin build/asked

# Into build/site, which opens from disk. Nothing in it is loaded from elsewhere.
docs: export NO_MKDOCS_2_WARNING = 1
docs: $(READY)
	$(BIN)/mkdocs build --quiet --strict
	@echo "Open build/site/index.html"

lint: $(READY)
	$(BIN)/ruff check
	$(BIN)/ruff format --check

# On a copy as users get it: mypy follows neither the symlinks nor an editable install's import hook.
types: MYPY = $(CURDIR)/$(BIN)/mypy --config-file $(CURDIR)/pyproject.toml
types: TESTS = $(CURDIR)/tests
types: BENCHMARKS = $(CURDIR)/benchmarks
types: $(READY)
	rm -rf build
	$(BIN)/pip install --quiet --no-deps --target $(INSTALLED) .
	cd $(INSTALLED) && MYPYPATH=. $(MYPY) --package attnfuzz
	cd $(INSTALLED) && MYPYPATH=.:$(TESTS):$(TESTS)/fakes:$(BENCHMARKS) $(MYPY) --explicit-package-bases $(TESTS) $(BENCHMARKS) $(CURDIR)/conftest.py

imports: $(READY)
	$(BIN)/lint-imports

$(READY): pyproject.toml constraints.txt
	@echo "== Installing into $(VENV) (once; several minutes when torch has to be downloaded)"
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "attnfuzz needs Python 3.11 or later: make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) build dist attnfuzz-out .attnfuzz .hypothesis .mypy_cache .pytest_cache .ruff_cache .import_linter_cache
