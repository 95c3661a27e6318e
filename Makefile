# Every target creates .venv first and needs only Python (3.10 or later), make and a C compiler.
# PYTHON=python3.12 make test     uses another interpreter
# JOBS=8 make test                runs the tests in eight processes (default: two)
PYTHON ?= python3
JOBS ?= 2
VENV := .venv
BIN := $(VENV)/bin
EXTRAS := sim,gym,export,video,view,plot,sweep,postgresql,wandb,neptune,dev
PIP_INSTALL := $(BIN)/python -m pip install --quiet --quiet --disable-pip-version-check --constraint constraints.txt
# torch is installed first and separately, so that a build already installed for this machine is not replaced
TORCH := $(shell sed -n 's/^\(torch==[^ ;]*\).*/\1/p' constraints.txt)
# small networks run faster on one thread, and the tests run in several processes
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses $(JOBS) --dist loadfile

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
# forward commands only, and mirrored samples with few epochs, so that about a minute on two cores is enough
DEMO := runs/demo
DEMO_COMMANDS := --env.commands.lin-vel-x 0.3 1.0 --env.commands.lin-vel-y 0 0 --env.commands.ang-vel-yaw 0 0 \
	--env.commands.standing-fraction 0
DEMO_TRAINING := --env.deployable --algorithm.num-learning-epochs 2 --set algorithm.symmetry_cfg.use_data_augmentation=true

.PHONY: demo help venv test lint types layers spelling check format bench docs clean

help: ## show this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1|\2/p' Makefile | while IFS='|' read -r name text; do printf '  make %-10s %s\n' "$$name" "$$text"; done

$(VENV)/.made:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { echo "st_rl needs Python 3.10 or later: PYTHON=/path/to/python3 make ..."; exit 1; }
	@echo "venv      $(VENV)"
	@$(PYTHON) -m venv $(VENV)
	@# older versions of pip take minutes to resolve the dependencies
	@$(PIP_INSTALL) --upgrade pip
	@touch $@

# installed again when the dependencies change
$(VENV)/.installed: $(VENV)/.made pyproject.toml constraints.txt
	@echo "install   $(TORCH)"
	@$(PIP_INSTALL) $(TORCH)
	@echo "install   st_rl[$(EXTRAS)]"
	@$(PIP_INSTALL) --editable ".[$(EXTRAS)]"
	@touch $@

$(VENV)/.docs: $(VENV)/.installed
	@echo "install   st_rl[docs]"
	@$(PIP_INSTALL) --editable ".[docs]"
	@touch $@

venv: $(VENV)/.installed ## create .venv with everything needed for development

test: check ## lint, types, layers, spelling, then every test
	@echo "pytest    $(JOBS) processes"
	@$(PYTEST)

check: lint types layers spelling ## lint, types, layers and spelling

lint: $(VENV)/.installed ## style and format (ruff)
	@echo "ruff"
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --quiet --check . || { echo "not formatted: run 'make format'"; exit 1; }

types: $(VENV)/.installed ## type check (basedpyright)
	@echo "types"
	@$(BIN)/basedpyright --level error

layers: $(VENV)/.installed ## one-way imports between packages (import-linter)
	@echo "layers"
	@$(BIN)/lint-imports --no-cache > $(VENV)/layers.log 2>&1 || { cat $(VENV)/layers.log; exit 1; }

spelling: $(VENV)/.installed ## spelling (codespell)
	@echo "spelling"
	@$(BIN)/codespell

format: $(VENV)/.installed ## fix style and format (ruff)
	@$(BIN)/ruff check --quiet --fix .
	@$(BIN)/ruff format --quiet .

demo: $(VENV)/.installed ## train a quadruped to walk in about a minute, evaluate, record, export, write a deploy kit
	@rm -rf $(DEMO)
	@$(BIN)/st-rl train quadruped-walk --iterations 250 --minutes 1.85 --log-dir $(DEMO) $(DEMO_COMMANDS) $(DEMO_TRAINING)
	@$(BIN)/st-rl eval $(DEMO)
	@$(BIN)/st-rl export $(DEMO)
	@# needs a rendering library; the error names the one to install, and the demo continues without a video
	@$(BIN)/st-rl play $(DEMO) --no-viewer --command 0.7 0 0 || echo "no video; continuing without it"
	@$(BIN)/st-rl report $(DEMO)
	@$(BIN)/st-rl deploy $(DEMO) $(DEMO)/kit

bench: $(VENV)/.installed ## speed compared with rsl_rl on this machine, in benchmarks/results/
	@$(BIN)/python benchmarks/ppo_cpu.py

docs: $(VENV)/.docs ## build the documentation in site/
	@echo "docs      site/index.html"
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

clean: ## remove .venv and all build outputs
	@rm -rf $(VENV) build dist site .pytest_cache .ruff_cache .import_linter_cache
	@find st_rl tests benchmarks examples -name __pycache__ -type d -prune -exec rm -rf {} +
