# Every target makes its own virtual environment and needs only Python (3.10 or later), make and a C compiler.
# PYTHON=python3.12 make test     picks another interpreter
# JOBS=8 make test                runs the tests in eight processes (two without it)
PYTHON ?= python3
JOBS ?= 2
VENV := .venv
BIN := $(VENV)/bin
EXTRAS := sim,gym,export,video,plot,sweep,wandb,neptune,dev
PIP_INSTALL := $(BIN)/python -m pip install --quiet --quiet --disable-pip-version-check --constraint constraints.txt
# torch first and by itself, so that a build chosen for this machine is kept and not replaced by another
TORCH := $(shell sed -n 's/^\(torch==[^ ;]*\).*/\1/p' constraints.txt)
# small networks run faster on one thread (DESIGN 3), and the tests run in several processes
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses $(JOBS) --dist loadfile

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
# forward speeds only, so that two minutes on two cores are enough
DEMO := runs/demo
DEMO_COMMANDS := --env.commands.lin-vel-x 0.3 1.0 --env.commands.lin-vel-y 0 0 --env.commands.ang-vel-yaw 0 0 \
	--env.commands.standing-fraction 0

.PHONY: demo help venv test lint types layers spelling check format bench docs clean

help: ## show this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1|\2/p' Makefile | while IFS='|' read -r name text; do printf '  make %-10s %s\n' "$$name" "$$text"; done

$(VENV)/.made:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { echo "st_rl needs Python 3.10 or later: PYTHON=/path/to/python3 make ..."; exit 1; }
	@echo "venv      $(VENV)"
	@$(PYTHON) -m venv $(VENV)
	@# older versions of pip take minutes to find versions that fit together
	@$(PIP_INSTALL) --upgrade pip
	@touch $@

# made anew when the package's needs change
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

venv: $(VENV)/.installed ## make .venv with everything that development needs

test: check ## lint, types, layers, spelling, then every test
	@echo "pytest    $(JOBS) processes"
	@$(PYTEST)

check: lint types layers spelling ## all that test does before the tests

lint: $(VENV)/.installed ## style and format (ruff)
	@echo "ruff"
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --quiet --check . || { echo "not formatted: run 'make format'"; exit 1; }

types: $(VENV)/.installed ## type check (basedpyright)
	@echo "types"
	@$(BIN)/basedpyright --level error

layers: $(VENV)/.installed ## imports point one way only (import-linter)
	@echo "layers"
	@$(BIN)/lint-imports --no-cache > $(VENV)/layers.log 2>&1 || { cat $(VENV)/layers.log; exit 1; }

spelling: $(VENV)/.installed ## spelling (codespell)
	@echo "spelling"
	@$(BIN)/codespell

format: $(VENV)/.installed ## rewrite the files as ruff wants them
	@$(BIN)/ruff check --quiet --fix .
	@$(BIN)/ruff format --quiet .

demo: $(VENV)/.installed ## train a robot to walk in two minutes, judge it, film it, export it
	@rm -rf $(DEMO)
	@$(BIN)/st-rl train quadruped-walk --iterations 250 --minutes 1.85 --log-dir $(DEMO) $(DEMO_COMMANDS)
	@$(BIN)/st-rl eval $(DEMO)
	@$(BIN)/st-rl export $(DEMO)
	@# without a rendering library the message says which one to install; the rest of the demo does not need it
	@$(BIN)/st-rl play $(DEMO) --no-viewer --command 0.7 0 0 || echo "no film; everything else goes on"
	@$(BIN)/st-rl report $(DEMO)

bench: $(VENV)/.installed ## speed on this machine beside rsl_rl, results in benchmarks/results/
	@$(BIN)/python benchmarks/ppo_cpu.py

docs: $(VENV)/.docs ## the documentation, in site/
	@echo "docs      site/index.html"
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

clean: ## remove the virtual environment and all that was built
	@rm -rf $(VENV) build dist site .pytest_cache .ruff_cache .import_linter_cache
	@find st_rl tests benchmarks examples -name __pycache__ -type d -prune -exec rm -rf {} +
