# Two commands do all: `make serve` and `make test`. Everything is installed into .venv, with hashes.
.DEFAULT_GOAL := help
SHELL := /bin/bash
VENV  := .venv
BIN   := $(VENV)/bin
UV    := UV_HTTP_TIMEOUT=120 UV_HTTP_RETRIES=5 VIRTUAL_ENV=$(abspath $(VENV)) $(BIN)/uv
MEMBERS := shared/protocols shared/parsers shared/tokenizers shared/runtime services/frontend services/tokenizer \
           services/router services/kv_indexer services/worker services/tool_dispatch deploy/local
SERVICES := frontend tokenizer router kv_indexer worker tool_dispatch
DIST_tokenizer := catenary-tokenizer-service
PYPROJECTS := $(addsuffix /pyproject.toml,$(MEMBERS))
ARGS ?=
FILES ?= ../shared/cases/*.jsonl
SECONDS ?= 600

help:  ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 16

$(BIN)/uv: requirements/uv.txt
	@python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed"; exit 1; }
	python3 -m venv $(VENV)
	@n=0; until $(BIN)/pip install -q --disable-pip-version-check --require-hashes -r requirements/uv.txt; do n=$$((n+1)); [ $$n -lt 4 ] || exit 1; sleep $$((n*5)); done
	@touch $@

$(VENV)/.serve: $(BIN)/uv requirements.txt $(PYPROJECTS)
	@n=0; until $(UV) pip install -q --require-hashes -r requirements.txt; do n=$$((n+1)); [ $$n -lt 4 ] || exit 1; sleep $$((n*5)); done
	$(UV) pip install -q --no-deps $(addprefix -e ,$(MEMBERS))
	@touch $@

$(VENV)/.dev: $(BIN)/uv requirements-dev.txt $(PYPROJECTS)
	@n=0; until $(UV) pip install -q --require-hashes -r requirements-dev.txt; do n=$$((n+1)); [ $$n -lt 4 ] || exit 1; sleep $$((n*5)); done
	$(UV) pip install -q --no-deps $(addprefix -e ,$(MEMBERS))
	@touch $@ $(VENV)/.serve

install: $(VENV)/.serve  ## what `make serve` needs
install-dev: $(VENV)/.dev  ## what tests and checks need

serve: $(VENV)/.serve  ## the whole mesh on port 8000, until Ctrl-C (ARGS="--port 9000 --workers 4")
	@exec $(BIN)/catenary up $(ARGS)

demo: $(VENV)/.serve  ## a two-turn agent run against a mesh it starts, as a timeline
	@exec $(BIN)/catenary demo $(ARGS)

test: $(VENV)/.dev check  ## every check and test, under five minutes
	$(BIN)/python -m pytest -q -m "not slow" -n 3 $(ARGS)

check: $(VENV)/.dev  ## lint, format, types, layers, generated files
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy shared services deploy/local tests docs/examples
	$(BIN)/basedpyright --level error
	$(BIN)/lint-imports tests/contract/importlinter.ini --no-cache
	$(UV) pip check

format: $(VENV)/.dev  ## let ruff mend what it can
	$(BIN)/ruff check --fix . ; $(BIN)/ruff format .

audit: $(VENV)/.dev  ## known vulnerabilities in what is installed to serve
	$(BIN)/python -m tests.audit

cases: $(VENV)/.dev  ## run case files (FILES=path/*.jsonl)
	$(BIN)/python -m tests.cases $(FILES)

clients: $(VENV)/.dev  ## unmodified agents and SDKs go through a tool loop (ARGS="codex openai" for some; npm's are kept in ~/.cache/catenary/clients)
	$(BIN)/python -m tests.conformance $(ARGS)

bench: $(VENV)/.dev  ## measure and print JSON
	$(BIN)/python -m tests.bench $(ARGS)

simulations: $(VENV)/.dev  ## write docs/simulations anew: routing policies compared on a virtual clock
	$(BIN)/python -m tests.bench.simulations

faults: $(VENV)/.dev  ## kill, freeze and cut off every part of a mesh under load; what became of each turn and call
	$(BIN)/python -m pytest -q tests/faults $(ARGS)

compose-test: $(VENV)/.dev  ## Compose on a Docker engine of the test's own: built, up, a demo, kills, down (as root)
	$(BIN)/python -m tests.compose

soak: $(VENV)/.dev  ## a mesh under mixed load: nothing grows, nothing is left behind (SECONDS=600)
	$(BIN)/python -m tests.soak $(SECONDS)

fuzz: $(VENV)/.dev  ## look for input that breaks the parsers' laws (SECONDS=600; SEED=1 for the same texts again)
	$(BIN)/python -m shared.parsers.tests.fuzz_parsers $(SECONDS) $(SEED)

reference: $(VENV)/.dev  ## write docs/reference and deploy/nats/accounts.conf anew from the code
	$(BIN)/python -m tests.contract.reference

lock: $(BIN)/uv  ## write the exported requirements anew from the members' declarations
	$(UV) lock -q
	$(UV) export -q --frozen --no-header --no-annotate --no-emit-workspace --all-packages --all-extras --no-extra trtllm --no-extra plot --no-dev --format requirements-txt -o requirements.txt
	$(UV) export -q --frozen --no-header --no-annotate --no-emit-workspace --all-packages --all-extras --no-extra trtllm --all-groups --format requirements-txt -o requirements-dev.txt
	$(foreach s,$(SERVICES),$(UV) export -q --frozen --no-header --no-annotate --no-emit-workspace --no-dev --package $(or $(DIST_$(s)),catenary-$(subst _,-,$(s))) --format requirements-txt -o requirements/$(s).txt ;)
	$(UV) export -q --frozen --no-header --no-annotate --no-emit-workspace --no-dev --package catenary-worker --extra llamacpp --format requirements-txt -o requirements/worker-llamacpp.txt

.PHONY: help install install-dev serve demo test check format reference audit cases clients bench simulations faults compose-test soak fuzz lock
