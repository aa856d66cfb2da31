# make demo   train and try a model that reads dates (about two minutes)
# make test   run the tests, and list the 20 slowest (each file in one process, so that its trained models are made once)
# make check  lint, format and types (pyright brings its own node)
# make docs   make the documentation site in docs/_build, which needs no network to be read
# make fuzz   give every reader and flag what nobody meant, for ten minutes, and judge what comes of it
#             (make fuzz SECONDS=60 SEED=1)
# make clean  remove .venv
# Each makes .venv and installs what it needs when missing. Needs Python 3.11 or newer with venv, and make.

PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
INSTALLED := .venv/.installed

.PHONY: demo test check docs fuzz clean

demo: $(INSTALLED)
	$(BIN)/glassformer demo

test: $(READY)
	$(BIN)/python -m pytest -n auto --dist loadfile --durations 20 --durations-min 1

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright --warnings

docs: .venv/.docs
	$(BIN)/python -m sphinx -b html -q -W --keep-going docs docs/_build
	@echo docs/_build/index.html

fuzz: $(READY)
	$(BIN)/python tests/fuzz --seconds $(or $(SECONDS),600) $(if $(SEED),--seed $(SEED))

clean:
	rm -rf .venv docs/_build

.venv/.docs: $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs]'
	@touch .venv/.docs

$(READY): $(INSTALLED)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $(READY)

$(INSTALLED): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "glassformer needs Python 3.11 or newer; name one with: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[demo,plots]'
	@touch $(INSTALLED)
