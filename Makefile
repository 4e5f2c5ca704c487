# Every target that needs the environment makes it first. The stamp in it is written last: half of one is made anew.

PYTHON ?= python3
RUN := .venv/bin/python -m
STAMP := .venv/.made
FLEET := .fleet/.made
USABLE := 'import sys; (3, 11) <= sys.version_info[:2] <= (3, 13) or sys.exit(1); print(sys._base_executable)'
# PYTHONPATH would let pip take another environment's packages for this one's.
PIP := env -u PYTHONPATH -u PYTHONHOME PIP_USER=0 .venv/bin/pip install --quiet --no-compile --no-input \
  --disable-pip-version-check

# A value goes to the shell within single quotes, and an option only where its variable is set.
quote = '$(subst ','\'',$(1))'
option = $(if $($(2)),$(1) $(call quote,$($(2))))
switch = $(if $(filter-out 0,$($(2))),$(1))

DEVICE_OPTION = $(call option,--device,DEVICE)
SELECTION = $(strip \
  $(call option,--failure,FAILURE) \
  $(call option,--variant,VARIANT) \
  $(call option,--strategy,STRATEGY) \
  $(call option,--checkpointing,CHECKPOINTING) \
  $(call option,--precision,PRECISION) \
  $(call option,--world,WORLD) \
  $(call option,--life,LIFE) \
  $(call option,--compile,COMPILE) \
  $(DEVICE_OPTION) \
  $(call option,--cell,CELL))
RUNNING = $(strip \
  $(call option,--workers,WORKERS) \
  $(call option,--per-gpu,PER_GPU) \
  $(call switch,--resume,RESUME) \
  $(call switch,--fresh,FRESH))
# One worker of pytest more than there are cores, as some wait; nine at most, each with ranks of its own. Some items take
# a hundred times as long as others.
CORES := $(shell n=`nproc`; echo $$((n < 8 ? n : 8)))
TESTS = pytest -n $(call quote,$(or $(WORKERS),$(shell echo $$(($(CORES) + 1))))) --dist worksteal --durations 30

FLEET_TESTS := .fleet/bin/python -m pytest --confcutdir tests/fleet tests/fleet --durations 30

# Where Python gives something a name.
NAMED = '(?<![\w.])_?[a-z]+_?(?= (?:=|:=) |: [\w"]|=[^=\s])|(?<=def )\w+|(?<=for )\w+(?= in |, )'

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help setup lock bump fleet test test-nightly test-fleet test-quick test-matrix is-safe replay reproduce bench lint clean

help: ## show this
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-12s %s\n", $$1, $$2 }' Makefile
	@echo
	@echo 'test-matrix and is-safe take FAILURE, VARIANT, STRATEGY, CHECKPOINTING, PRECISION, WORLD, LIFE, COMPILE and'
	@echo 'DEVICE, each one value or several between commas; or CELL, whole ids. Both take WORKERS, PER_GPU, RESUME=1 and FRESH=1;'
	@echo 'test-matrix also SHARD=1/4 and STACK (a name from stacks/, a date, or requirements); test takes DEVICE, WORKERS and SINCE.'
	@echo 'PYTHON names the interpreter that .venv is made with, 3.11 to 3.13. bin/faultline --help lists the commands.'

setup: $(STAMP) ## make .venv from requirements.txt and requirements.lock, unless it is there and finished
	@:

fleet: $(FLEET) ## make .fleet, whose bin/faultline runs cells on a Ray cluster; the stack stays in .venv
	@:

# Ray is in an environment of its own, as what is measured must not have it.
$(FLEET): requirements-fleet.txt pyproject.toml $(STAMP)
	@set -e; \
	echo "set-up: making .fleet, which takes about a minute, and the download"; \
	rm -rf .fleet; \
	.venv/bin/python -m venv .fleet; \
	env -u PYTHONPATH -u PYTHONHOME PIP_USER=0 .fleet/bin/pip install --quiet --no-input --disable-pip-version-check \
	  --constraint requirements.txt --editable '.[run]' --requirement $<; \
	touch $@

# All that the lock has is installed by its hashes. What is left is torch, whose build differs from machine to machine, and
# a pin that is newer than the lock. Byte code is compiled at once, on all cores: without it each start takes three times as
# long; some files are for other Pythons, which is no reason to stop.
$(STAMP): requirements.txt requirements.lock
	@set -e; \
	if cat $^ | cmp -s - $@; then touch $@; exit; fi; \
	python=$$($(call quote,$(PYTHON)) -c $(USABLE) 2>/dev/null) || { \
	  echo "set-up: Python 3.11 to 3.13 is needed; name one, as in: make setup PYTHON=python3.13" >&2; exit 2; }; \
	echo "set-up: making .venv, which takes about a minute, and the download"; \
	rm -rf .venv; \
	"$$python" -m venv .venv; \
	cp requirements.lock .venv/.lock; \
	cp requirements.txt .venv/.pins; \
	cat .venv/.pins .venv/.lock >.venv/.making; \
	$(PIP) --no-deps --require-hashes -r .venv/.lock; \
	$(PIP) -r .venv/.pins; \
	$(RUN) compileall -q -j 0 .venv/lib >/dev/null 2>&1 || true; \
	mv .venv/.making $@

# Without torch, and what its build alone brings.
LOCK = pip compile requirements.txt --universal --python-version 3.11 --generate-hashes --no-emit-package torch \
  --no-header --no-annotate --output-file requirements.lock
lock: $(if $(wildcard $(STAMP)),,setup) ## write requirements.lock anew: every version that requirements.txt leads to, with the hashes of its files
	@.venv/bin/python -c 'import sys; from faultline.stacks.environments import run_uv; run_uv(sys.argv[1:])' $(LOCK)
	@awk '/^[^ ]/ {left = /^(cuda-|nvidia-|triton==)/ && !/^nvidia-ml-py==/} !left' requirements.lock >requirements.lock.new
	@mv requirements.lock.new requirements.lock

# The first call moves the pins, the second one measures on what was installed in between.
bump: $(if $(wildcard $(STAMP)),,setup) ## move pins and measure all again on them: make bump REQ='transformers==5.24.0'
	@test -n $(call quote,$(REQ)) || { echo "name what is to move: make bump REQ='transformers==5.24.0'" >&2; exit 2; }
	$(RUN) faultline maintain bump $(call quote,$(REQ)) $(call option,--workers,WORKERS)
	@$(SELF) --no-print-directory lock setup
	$(RUN) faultline maintain bump $(call quote,$(REQ)) $(call option,--workers,WORKERS)

# Lint runs beside the tests, and what it says comes at their end. `make -n` would run a line that says $(MAKE).
SELF = $(MAKE)
test: setup ## lint, the tests but those of the night, one cell of each kind, and all cells changed since SINCE
	@log=$$(mktemp); lint=; trap 'test -z "$$lint" || kill $$lint; rm -f "$$log"' EXIT; trap 'exit 130' INT TERM; \
	$(SELF) --no-print-directory lint >"$$log" 2>&1 & lint=$$!; \
	$(RUN) $(TESTS) tests repros --ignore tests/fleet -m 'not nightly' $(DEVICE_OPTION) $(call option,--since,SINCE); \
	tests=$$?; \
	wait $$lint; style=$$?; lint=; \
	test $$style = 0 && echo 'lint passed' || { cat "$$log"; echo 'lint failed'; }; \
	exit $$((tests ? tests : style))

test-nightly: fleet ## all tests, those that take minutes or are many alike among them, and the whole matrix
	@$(RUN) $(TESTS) tests repros --ignore tests/fleet $(DEVICE_OPTION); tests=$$?; $(FLEET_TESTS) && exit $$tests

test-fleet: fleet ## the tests of Ray clusters and Slurm, in the environment that has Ray
	$(FLEET_TESTS)

test-quick: lint ## lint, the tests that take no seconds, and one cell of each broken variant
	$(RUN) $(TESTS) tests --ignore tests/fleet -m 'not slow and not nightly'
	$(RUN) faultline run --quick --variant '*broken' $(call option,--workers,WORKERS)

test-matrix: setup ## run the matrix, or the part of it that the variables name
	$(RUN) faultline run $(SELECTION) $(RUNNING) $(call option,--shard,SHARD) $(call option,--stack,STACK)

is-safe: setup ## judge whether REQ, such as "trl==1.12.0", is safe on what is installed, or on BASE; ALL=1
	$(RUN) faultline is-safe $(call quote,$(REQ)) $(call option,--base,BASE) $(call switch,--all,ALL) $(SELECTION) $(RUNNING)

replay: setup ## ask is-safe about past upgrades whose answer is known, and rewrite the table of stacks/README.md
	$(RUN) faultline maintain replay

reproduce: setup ## show FAILURE on the stack that it was reported on and, next to it, on today's
	$(RUN) faultline reproduce $(call quote,$(FAILURE)) $(DEVICE_OPTION)

bench: setup ## measure what cells cost and rewrite the table of bench/README.md
	$(RUN) faultline prove bench

lint: setup ## check format, style, words, types and the rules of imports
	$(RUN) ruff format --check
	$(RUN) ruff check
	.venv/bin/codespell --skip '*/terms.toml' README.md CHANGELOG.md CONTRIBUTING.md docs examples faultline lab website repros fixtures/README.md bench stacks tiny_models conftest.py
	.venv/bin/codespell --dictionary docs/names.txt --regex $(NAMED) examples faultline lab website tests repros conftest.py
	$(RUN) mypy
	.venv/bin/lint-imports --no-logo --no-cache
	$(RUN) check_jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml
	$(RUN) check_jsonschema --builtin-schema vendor.github-actions action.yml
	$(RUN) check_jsonschema --builtin-schema vendor.renovate renovate.json

clean: ## remove .venv, .fleet, results and generated files
	rm -rf .venv .fleet results generated
