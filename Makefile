# Commands for contributors. `make test` and `make demo` create .venv if it is missing.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

DEMO ?= segcal-demo
STUDY ?= segcal-study

.PHONY: test docs demo study lint types pytest slow oldest format clean

# The documentation is built while the code is checked.
test: $(STAMP)
	$(MAKE) --jobs=2 lint types docs
	$(MAKE) pytest

# torch is installed first, so that no other package pulls in another build of it.
$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev,docs]'
	$(BIN)/python -m pip install --quiet --no-deps --editable examples/plugin
	touch $@

# The documentation as a site that opens from disk: site/index.html. Warnings are errors.
docs: $(STAMP)
	$(BIN)/python -m sphinx --quiet --fail-on-warning --keep-going --jobs auto docs build/docs/html
	rm -rf site && cp -R build/docs/html site

# Generated data, five losses, a report; takes a few minutes on two cores.
demo: $(STAMP)
	$(BIN)/segcal demo --out $(DEMO)

# The published study: nine methods with five seeds and the variants of NACL on ACDC, and nine methods
# with three seeds on Hippocampus if it is given; with LIDC also the losses with the default recipe and
# ACDC with one pathology left out, and those in 3-D with Hippocampus and BraTS. Running it again resumes it.
#   make study ACDC=path/to/ACDC/training [HIPPOCAMPUS=path/to/Task04_Hippocampus] [LIDC=path]
#     [BRATS=path/to/FLAIR] [STUDY=folder] [JOBS=n] [OPTIONS='--set train.epochs=1']
BENCHMARK = $(BIN)/segcal benchmark --resume $(if $(JOBS),--jobs $(JOBS)) $(OPTIONS)
study: $(STAMP)
	@test -d '$(ACDC)' || { echo 'make study ACDC=path/to/ACDC/training'; exit 2; }
	@test -z '$(HIPPOCAMPUS)' -o -d '$(HIPPOCAMPUS)' || { echo '$(HIPPOCAMPUS): no such folder'; exit 2; }
	$(BIN)/segcal prepare acdc --source '$(ACDC)' --out $(STUDY)/data --dtype uint8
	$(BENCHMARK) examples/acdc_study.yaml --out $(STUDY)/acdc --data acdc=$(STUDY)/data
	$(BENCHMARK) examples/acdc_variants.yaml --out $(STUDY)/acdc_variants --data acdc=$(STUDY)/data
ifneq ($(HIPPOCAMPUS),)
	$(BIN)/segcal prepare msd --source '$(HIPPOCAMPUS)' --out $(STUDY)/hippocampus_data --dtype uint8 --classes anterior,posterior
	$(BENCHMARK) examples/hippocampus_study.yaml --out $(STUDY)/hippocampus --data hippocampus=$(STUDY)/hippocampus_data
endif
ifneq ($(LIDC),)
	$(BIN)/segcal prepare folder --source '$(LIDC)' --out $(STUDY)/lidc_data --dtype uint8 --patient '(.+)_n' --classes nodule
	$(BENCHMARK) examples/evidence.yaml --out $(STUDY)/evidence --data acdc=$(STUDY)/data --data lidc=$(STUDY)/lidc_data
	for group in DCM HCM MINF NOR RV; do \
	  $(BIN)/segcal prepare acdc --source '$(ACDC)' --out $(STUDY)/without_$$group --dtype uint8 --leave-out-group $$group || exit; \
	done
	$(BENCHMARK) examples/evidence_shift.yaml --out $(STUDY)/shift $(foreach group,dcm=DCM hcm=HCM minf=MINF nor=NOR rv=RV,--data $(subst =,=$(STUDY)/without_,$(group)))
endif
ifneq ($(and $(HIPPOCAMPUS),$(BRATS)),)
	$(BIN)/segcal prepare msd --source '$(HIPPOCAMPUS)' --out $(STUDY)/hippocampus_volumes --dtype uint8 --recipe native --classes anterior,posterior
	$(BIN)/segcal prepare folder --source '$(BRATS)' --out $(STUDY)/brats_data --dtype uint8 --recipe native --classes tumor
	$(BENCHMARK) examples/evidence_volumes.yaml --out $(STUDY)/volumes --data hippocampus=$(STUDY)/hippocampus_volumes --data brats=$(STUDY)/brats_data
endif

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-logo

types: $(STAMP)
	$(BIN)/mypy

pytest: $(STAMP)
	$(BIN)/python -m pytest --numprocesses auto

slow: $(STAMP)
	$(BIN)/python -m pytest -m slow

# Metrics and tables with the oldest supported numpy, pandas and scipy, in a separate environment.
oldest: OLD := $(VENV)-oldest
oldest:
	$(PYTHON) -m venv $(OLD)
	grep -v -E '^(numpy|pandas|scipy)(-stubs|-typing-compat)?==' constraints.txt > $(OLD)/constraints.txt
	cat constraints-oldest.txt >> $(OLD)/constraints.txt
	$(OLD)/bin/python -m pip install --quiet --constraint $(OLD)/constraints.txt torch
	$(OLD)/bin/python -m pip install --quiet --constraint $(OLD)/constraints.txt --editable '.[dev]'
	$(OLD)/bin/python -m pytest --numprocesses auto tests/metrics tests/report tests/benchmark tests/evaluation tests/data tests/posthoc

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist site
