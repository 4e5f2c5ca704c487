# Every target that needs the environment makes it first; see faultline/bootstrap.py.

PYTHON ?= python3
RUN := .venv/bin/python -m

# A value goes to the shell within single quotes, and an option only where its variable is set.
quote = '$(subst ','\'',$(1))'
option = $(if $($(2)),$(1) $(call quote,$($(2))))

DEVICE_OPTION = $(call option,--device,DEVICE)
SELECTION = $(strip \
  $(call option,--failure,FAILURE) \
  $(call option,--variant,VARIANT) \
  $(call option,--strategy,STRATEGY) \
  $(call option,--checkpointing,CHECKPOINTING) \
  $(call option,--precision,PRECISION) \
  $(call option,--world,WORLD) \
  $(DEVICE_OPTION) \
  $(call option,--cell,CELL))
# Of both kinds of tests, some take a hundred times as long as others.
BESIDE = -n $(call quote,$(or $(WORKERS),2)) --dist worksteal
OPTIONS = $(strip $(SELECTION) \
  $(call option,--shard,SHARD) \
  $(call option,--workers,WORKERS) \
  $(call option,--stack,STACK) \
  $(if $(filter-out 0,$(RESUME)),--resume))

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help setup test test-matrix test-quick browser screenshots bench repeat chaos list lint clean clean-stacks reproduce timeline bisect is-safe is-safe-change replay merge export-all reports

help: ## show this
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-14s %s\n", $$1, $$2 }' Makefile
	@echo
	@echo 'test-matrix and list take FAILURE, VARIANT, STRATEGY, CHECKPOINTING, PRECISION and WORLD, each one value or'
	@echo 'several between commas, and DEVICE; or else CELL, with whole ids. test-matrix also takes WORKERS, SHARD=1/4,'
	@echo 'RESUME=1 and STACK (a name from stacks/, a date, or requirements such as trl==1.12.0); list LEFT_OUT=1 (what the'
	@echo 'default leaves out, and the rule); test DEVICE and WORKERS.'
	@echo 'bisect takes FAILURE, PACKAGE and what narrows the matrix to a cell, DIRECTION=introduced or fixed, OTHERS=dated or'
	@echo 'fixed, FROM, TO, BAD (what counts as the failure), BLAME=1, WORKERS and RESUME=1.'
	@echo 'PYTHON names the interpreter that .venv is made with, 3.11 to 3.13.'

setup: ## make .venv from requirements.txt, unless it is there and whole
	@$(call quote,$(PYTHON)) -m faultline.bootstrap

test: lint ## lint, the tests of the machinery, then the whole matrix under pytest
	$(RUN) pytest tests $(BESIDE)
	$(RUN) pytest repros $(BESIDE) $(DEVICE_OPTION)

test-matrix: setup ## run the matrix, or the part of it that the variables name
	$(RUN) faultline run $(OPTIONS)

test-quick: lint ## lint, the tests of the machinery that take no seconds, and one cell of each broken variant
	$(RUN) pytest tests -m 'not slow' $(BESIDE)
	$(RUN) faultline run --quick --variant '*broken' $(call option,--workers,WORKERS)

merge: setup ## put the shards of a run together; RUNS names their folders, or patterns such as shards/*/*
	$(RUN) faultline merge $(foreach run,$(foreach each,$(RUNS),$(or $(sort $(wildcard $(each))),$(each))),$(call quote,$(run)))

is-safe-change: setup ## is-safe of what requirements.txt pins differently from BASE_FILE, an older one
	$(RUN) faultline is-safe-change $(call quote,$(BASE_FILE))

bench: setup ## measure what cells cost and rewrite the table of bench/README.md
	$(RUN) faultline bench

repeat: setup ## run the matrix twice and compare every outcome
	$(RUN) faultline repeat $(SELECTION) $(call option,--workers,WORKERS)

chaos: setup ## run 200 random cells while ranks are killed at random moments; no other command uses that run
	$(RUN) faultline chaos $(call option,--workers,WORKERS)

list: setup ## list the cells, or those that the variables name, and what is left out
	$(RUN) faultline list $(SELECTION) $(if $(filter-out 0,$(LEFT_OUT)),--left-out)

bisect: setup ## find the release of PACKAGE that introduced or fixed FAILURE
	$(RUN) faultline bisect $(SELECTION) \
	  $(call option,--package,PACKAGE) \
	  $(if $(DIRECTION),$(call quote,--$(DIRECTION))) \
	  $(call option,--others,OTHERS) \
	  $(call option,--from,FROM) \
	  $(call option,--to,TO) \
	  $(call option,--bad,BAD) \
	  $(call option,--workers,WORKERS) \
	  $(if $(filter-out 0,$(BLAME)),--blame) \
	  $(if $(filter-out 0,$(RESUME)),--resume)

browser: setup ## fetch a headless browser for the tests of the pages, with the system's packages that it needs
	$(RUN) playwright install --with-deps --only-shell chromium

screenshots: setup ## make the pictures of the README anew, from commands that are run for them
	$(RUN) faultline.screenshots

lint: setup ## check format, style and types
	$(RUN) ruff format --check
	$(RUN) ruff check
	$(RUN) mypy faultline
	$(RUN) check_jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml
	$(RUN) check_jsonschema --builtin-schema vendor.renovate renovate.json
	$(RUN) check_jsonschema --schemafile advisories/schema/osv.json advisories/*.json

reproduce: setup ## show FAILURE on the stack that it was reported on and, next to it, on today's
	$(RUN) faultline reproduce $(call quote,$(FAILURE)) $(DEVICE_OPTION)

timeline: setup ## run cells on the ecosystem as of the first of each month: SINCE, UNTIL, RESUME=1, WRITE=1
	$(RUN) faultline timeline $(SELECTION) $(call option,--since,SINCE) $(call option,--until,UNTIL) \
	  $(call option,--workers,WORKERS) $(if $(filter-out 0,$(RESUME)),--resume) $(if $(filter-out 0,$(WRITE)),--write)

is-safe: setup ## say whether REQ, such as "trl==1.12.0", is safe on what is installed, or on BASE; ALL=1, RESUME=1
	$(RUN) faultline is-safe $(call quote,$(REQ)) $(call option,--base,BASE) $(if $(filter-out 0,$(ALL)),--all) \
	  $(SELECTION) $(call option,--workers,WORKERS) $(if $(filter-out 0,$(RESUME)),--resume)

replay: setup ## is-safe over the past bumps of stacks/bumps.toml, whose answer is known; RESUME=1
	$(RUN) faultline replay $(call option,--workers,WORKERS) $(if $(filter-out 0,$(RESUME)),--resume)

export-all: setup ## export every cell that fails, or those that the variables name, and run each file; RESUME=1, WORKERS
	$(RUN) faultline export-all $(SELECTION) $(call option,--workers,WORKERS) $(if $(filter-out 0,$(RESUME)),--resume)

reports: setup ## export the upstream report of each failure that today's releases have, and run each file once; FAILURE
	$(RUN) faultline reports $(call option,--failure,FAILURE)

clean-stacks: setup ## remove the environments of all stacks, but for those that a run uses
	$(RUN) faultline clean-stacks

clean: ## remove .venv and results
	rm -rf .venv results
