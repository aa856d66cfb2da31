# make demo   train and try a model that reads dates (about two minutes)
# make test   run the tests, and list the 20 slowest (each file in one process, so that its trained models are made once;
#             one process more than cores, since many tests wait)
# make check  lint, format and types (pyright brings its own node)
# make docs   make the documentation site in docs/_build, which needs no network to be read
# make fuzz   give every reader and flag what nobody meant, for ten minutes, and judge what comes of it
#             (make fuzz SECONDS=60 SEED=1)
# make torture  kill, starve and disturb every command at random moments, for ten minutes, and count what it loses
#             (make torture SECONDS=60 SEED=1)
# make web    install what the tests of exported models run in Node and in a browser, in .venv/web: only files whose hashes are known,
#             and none of their own scripts (needs npm and the network; without it these tests skip)
# make gpu    run the tests and benchmarks of a CUDA GPU with $(PYTHON) as it is, without network or .venv, in ten minutes
#             (make gpu OUT=folder)
# make lock   write the hashes of constraints.txt into requirements/ (needs the network)
# make audit  look the locked packages up in a database of known faults; fails where no database can be reached
# make sbom   list the locked packages in dist/sbom.cdx.json (CycloneDX)
# make release  build the distributions and their list of packages in dist/
# make clean  remove .venv
# Each makes .venv and installs what it needs when missing. Needs Python 3.11 or newer with venv, and make.
# LOCKED=1 installs only files whose hashes stand in requirements/locked.txt, torch apart (CI does). TORCH_INDEX=URL takes torch,
# and nothing else, from the index at URL.

PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
INSTALLED := .venv/.installed

INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check
TOOLS := .venv/tools

# Else each of the hundreds of processes that the tests and the site start would compile all modules anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test check docs fuzz torture web gpu lock audit sbom release clean

demo: $(INSTALLED)
	$(BIN)/glassformer demo

test: $(READY)
	$(BIN)/python -m pytest -n auto --dist loadfile --no-loadscope-reorder --durations 20 --durations-min 1

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright --warnings

docs: .venv/.docs
	$(BIN)/python -m sphinx -b html -q -W --keep-going docs docs/_build
	@echo docs/_build/index.html

fuzz: $(READY)
	$(BIN)/python tests/fuzz --seconds $(or $(SECONDS),600) $(if $(SEED),--seed $(SEED))

torture: $(READY)
	$(BIN)/python -W ignore tests/torture --seconds $(or $(SECONDS),600) $(if $(SEED),--seed $(SEED))

web: .venv/web/.ready

# --ignore-scripts: onnxruntime-node's would download CUDA's files; the processor's are in the package.
.venv/web/.ready: requirements/web/package.json requirements/web/package-lock.json
	@mkdir -p .venv/web
	cp $^ .venv/web
	npm ci --prefix .venv/web --ignore-scripts --no-audit --no-fund
	@touch $@

gpu:
	$(PYTHON) benchmarks/gpu.py $(if $(OUT),--out $(OUT))

lock: $(TOOLS)/.ready
	$(TOOLS)/bin/python docs/make/lock.py

# --strict: a package that no database knows is a failure too, else a check without a database would pass.
audit: $(TOOLS)/installed.txt
	@$(TOOLS)/bin/pip-audit --strict --no-deps --disable-pip --progress-spinner off -r $(TOOLS)/installed.txt || \
		{ echo "make audit: a fault was found, or no database could be reached and nothing was checked (see above)"; exit 1; }

sbom: $(TOOLS)/installed.txt
	@mkdir -p dist
	$(TOOLS)/bin/cyclonedx-py requirements --pyproject pyproject.toml --output-reproducible -o dist/sbom.cdx.json $(TOOLS)/installed.txt
	@echo dist/sbom.cdx.json

release: $(READY) sbom
	$(BIN)/python -m hatchling build

# All that CI installs, torch too.
$(TOOLS)/installed.txt: requirements/locked.txt constraints.txt $(TOOLS)/.ready
	@{ cat requirements/locked.txt; grep '^torch==' constraints.txt; } > $@

$(TOOLS)/.ready: requirements/tools.txt
	$(PYTHON) -m venv $(TOOLS)
	$(TOOLS)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r requirements/tools.txt
	@touch $(TOOLS)/.ready

clean:
	rm -rf .venv docs/_build

.venv/.docs: $(READY)
	$(if $(LOCKED),,$(INSTALL) -c constraints.txt -e '.[docs]')
	@touch .venv/.docs

$(READY): $(INSTALLED)
	$(if $(LOCKED),,$(INSTALL) -c constraints.txt -e '.[dev]')
	@touch $(READY)

$(INSTALLED): pyproject.toml constraints.txt requirements/locked.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "glassformer needs Python 3.11 or newer; name one with: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	$(PYTHON) -m venv .venv
ifdef LOCKED
	$(INSTALL) --no-deps --require-hashes -r requirements/locked.txt
endif
ifdef TORCH_INDEX
	$(INSTALL) --no-deps --index-url $(TORCH_INDEX) -c constraints.txt torch
endif
ifdef LOCKED
	$(INSTALL) -c constraints.txt torch
	$(INSTALL) --no-deps --no-build-isolation -e .
else
	$(INSTALL) -c constraints.txt -e '.[demo,plots]'
endif
	@touch $(INSTALLED)
