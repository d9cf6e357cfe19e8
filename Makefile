# One verb a line; CI (.ci/run) calls the same ones. Needs Python 3.11+, make, and a package index.
# ARGS goes to the command behind the verb: make demo ARGS="--seconds 10", make test ARGS="-n 0".
PYTHON ?= python3
ARGS ?=
BIN := .venv/bin

# What runs for every event of the scheduler, every request and every chunk.
COMPILED := $(wildcard gateway/core/*.py) \
	$(addprefix gateway/api/, auth.py call.py continuing.py cycle.py disconnect.py doors.py \
		exchange.py framing.py front.py inbound.py interruption.py isolation.py life.py \
		limiting.py media.py models.py outflow.py outgoing.py outlet.py passing.py prefix.py \
		relay.py reply.py rewrite.py routes.py rules.py served.py shapes.py skim.py strings.py \
		surroundings.py whole.py wire.py work.py) \
	$(addprefix gateway/cluster/, abroad.py candidacy.py company.py counters.py deciders.py \
		follower.py guests.py inner.py leader.py line.py member.py messages.py naming.py \
		parts.py transport.py wire.py) \
	$(addprefix gateway/continuation/, strand.py) \
	$(addprefix gateway/runtime/, admission.py dispatcher.py gate.py) \
	$(addprefix gateway/telemetry/, fairness.py gauges.py goodput.py metrics.py series.py tenants.py) \
	$(addprefix gateway/tenancy/, budget.py keys.py limits.py shared.py window.py) \
	$(addprefix gateway/upstream/, chunks.py client.py connection.py figures.py fleet.py \
		frames.py json_text.py sse.py takers.py)

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-compiled check compile bench sim mutants e2e e2e-containers soak chaos chart docs lock clean

help: ## this list
	@sed -n 's/^\([a-z0-9-]*\):.*[#]# /\1\t/p' $(MAKEFILE_LIST) | expand -t 16

setup: .venv/.installed ## .venv with the fairgate command

demo: setup ## two emulated replicas, the gateway and a mixed load
	$(BIN)/fairgate demo $(ARGS)

test: .venv/.installed-dev ## all tests that need nothing but Python
	$(BIN)/pytest -q -n 2 $(ARGS)

test-compiled: build/compiled/.done .venv/.installed-dev ## the same tests against the machine code
	PYTHONSAFEPATH=1 PYTHONPATH=build/compiled:$(CURDIR) $(BIN)/pytest -q -n 2 --import-mode=append $(ARGS)

check: .venv/.installed-dev ## lint, format, types, import directions
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

compile: build/compiled/.done ## scheduler and relay as machine code in build/compiled (needs a C compiler)

bench: build/compiled/.done ## the gateway's own cost against going direct and nginx, compiled
	$(BIN)/python -m gateway.bench --build build/compiled $(ARGS)

sim: .venv/.installed-dev ## the scheduler against the engine model, under a virtual clock
	$(BIN)/pytest -q $(wildcard tests/simulation tests/property tests/unit/test_sim*.py) $(ARGS)

mutants: .venv/.installed-dev ## which changes of the core no test notices (needs pip install mutmut)
	$(BIN)/python -m tests.support.mutants $(ARGS)

e2e: .venv/.installed-dev ## against a real vLLM, and with the clients that applications use
	$(BIN)/pytest -q -m e2e tests/e2e $(ARGS)

e2e-containers: .venv/.installed-dev ## against a real container engine
	$(BIN)/pytest -q -m containers tests $(ARGS)

soak: .venv/.installed-dev ## a thousand slow readers for minutes, enormous prompts and errors
	$(BIN)/pytest -q -m soak tests/e2e/soak $(ARGS)

chaos: .venv/.installed-dev ## a hundred schedules of failing engines, lines and clients; ARGS="--seed 17" repeats one
	$(BIN)/pytest -q -m chaos tests/chaos $(ARGS)
	$(if $(ARGS),,$(BIN)/pytest -q -m chaos tests/simulation)

chart: .venv/.installed-dev build/chart/.done ## the Helm chart, rendered and held against schemas
	$(BIN)/pytest -q -m chart tests/e2e/chart $(ARGS)

docs: build/docs/.installed ## the documents as a site in build/docs/site, every link checked
	NO_MKDOCS_2_WARNING=1 build/docs/venv/bin/mkdocs build --strict $(ARGS)

lock: .venv/.installed-dev ## all lock files anew, after a change of pyproject.toml
	$(PIP) install 'uv>=0.13'
	$(COMPILE) --output-file requirements.lock pyproject.toml
	$(COMPILE) --output-file requirements-dev.lock --extra dev --extra otel --extra plots pyproject.toml
	$(COMPILE) --output-file deploy/requirements-image.lock --constraint requirements.lock \
		--extra otel --extra s3 pyproject.toml
	printf 'hatchling>=1.27\n' | $(COMPILE) - --output-file deploy/requirements-build.lock
	printf 'mkdocs-material>=9.7\npymdown-extensions>=10\n' | $(COMPILE) - --output-file deploy/site/requirements.lock

clean: ## caches and build outputs; .venv stays
	rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find gateway tests -name __pycache__ -type d -prune -exec rm -rf {} +

# mypyc: the core, typed and pure, runs about three times as fast; the relay, by a third (docs/performance.md).
# Apart from the sources, so that no stale binary shadows an edited file.
# -O2: what runs per request has to stay in the processor's caches; -O3 costs a twentieth more here. For the same
# reason cold.h has the paths of errors laid apart; hidden symbols are reached without a table.
build/compiled/.done: $(COMPILED) deploy/cold.h | .venv/.installed-dev
	rm -rf build/compiled
	mkdir -p build/compiled/gateway
	@touch build/compiled/.begun
	for each in gateway/*; do case " $(dir $(COMPILED)) " in \
		*" $$each/ "*) cp -r $$each build/compiled/gateway/ ;; \
		*) ln -s ../../../$$each build/compiled/gateway/ ;; esac; done
	cd build/compiled && MYPYC_OPT_LEVEL=2 MYPYC_DEBUG_LEVEL=0 \
		CFLAGS="-fvisibility=hidden -fno-semantic-interposition -fno-plt -include ../../deploy/cold.h" \
		../../$(BIN)/mypyc $(COMPILED) >mypyc.log 2>&1 || \
		{ tail -n 30 mypyc.log; exit 1; }
	@touch -r build/compiled/.begun $@ # what was edited meanwhile is newer

build/chart/.done: tests/e2e/chart/tools.sh
	sh $< $(PYTHON)

build/docs/.installed: deploy/site/requirements.lock
	rm -rf build/docs && $(PYTHON) -m venv build/docs/venv
	build/docs/venv/bin/python -m pip --disable-pip-version-check --quiet install --require-hashes -r $<
	@touch $@

# --universal: one lock for every platform and Python from 3.11 on; no header: no address of an index.
COMPILE = $(BIN)/python -m uv pip compile --quiet --universal --python-version 3.11 \
	--generate-hashes --no-emit-index-url --no-header

PIP = $(BIN)/python -m pip --disable-pip-version-check --quiet

.venv/.installed: requirements.lock pyproject.toml | $(BIN)/python
	$(PIP) install --require-hashes -r requirements.lock
	$(PIP) install --no-deps --editable .
	@touch $@

.venv/.installed-dev: requirements-dev.lock .venv/.installed
	$(PIP) install --require-hashes -r requirements-dev.lock
	@touch $@

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else \
		"fairgate needs Python 3.11 or newer: make PYTHON=/path/to/python3.11 ...")'
	$(PYTHON) -m venv .venv
