# One command each. All they need is make and a Python >= 3.11; the environment is made on first use, and installed
# again only when requirements.txt changes. ARGS is handed on: make test ARGS="-k takeover", make demo ARGS=--json

VENV ?= .venv
JOBS ?= 2
PYTHON ?= $(shell for python in python3 python3.14 python3.13 python3.12 python3.11 python; do \
	$$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$python && break; done)
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

.PHONY: demo serve test check bench

demo: $(INSTALLED)
	$(BIN)/python manage.py demo $(ARGS)

serve: $(INSTALLED)
	$(BIN)/python manage.py serve $(ARGS)

test: $(INSTALLED)
	$(BIN)/python -m pytest -n $(JOBS) --dist loadfile $(ARGS)

check: $(INSTALLED)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/basedpyright --pythonpath $(BIN)/python
	$(BIN)/lint-imports --no-logo
	$(BIN)/python manage.py makemigrations --check --dry-run
	$(BIN)/python manage.py check
	$(BIN)/python .ci/templates.py
	$(BIN)/python .ci/docs_links.py
	$(BIN)/check-jsonschema --builtin-schema vendor.compose-spec docker-compose.yml
	$(BIN)/python .ci/compose.py

bench: $(INSTALLED)
	$(BIN)/python -m benchmarks $(ARGS)

# The stamp comes last: an installation that was cut short is done again.
$(INSTALLED): requirements.txt
	@test -n "$(PYTHON)" || { echo "No Python >= 3.11 found: install one, or name it: make PYTHON=/path/to/python3" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.txt
	@touch $@
