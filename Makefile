# `make demo` and `make test` set everything up themselves, once, in .venv
PYTHON ?= python3
export DATA SRC TGT WORK RECIPE

.PHONY: help install demo test slow smoke lint docs package bench

help:
	@echo "make demo   train on 20,000 English-French sentences and score the result (3 to 6 minutes the first time)"
	@echo "            DATA=prefix SRC=en TGT=de make demo   on your own aligned text, prefix.en and prefix.de"
	@echo "            UPDATES=60 make demo   a shorter training"
	@echo "make test   run the tests"
	@echo "make slow   run the tests that take long"
	@echo "make smoke  run benchmarks and examples, as small as they can be"
	@echo "make lint   ruff and mypy"
	@echo "make docs   the documentation site, in site/"
	@echo "make package  the source distribution and the wheel, checked, in dist/"
	@echo "make bench  the benchmarks with small inputs, next to their goals (minutes, on a quiet machine)"

install:
	@$(PYTHON) tools/install.py

demo:
	@$(PYTHON) tools/install.py demo
	@.venv/bin/lxsr run $(or $(DATA),demo) --lang-pair $(or $(SRC),en)-$(or $(TGT),fr) $(if $(WORK),--work $(WORK)) --recipe $(or $(RECIPE),best) $(if $(UPDATES),--max-update $(UPDATES)) $(if $(DATA),,--no-short-pairs)

# in the order of the folders: the longest files, in integration/, do not come last, where one process would wait
test: install
	OMP_NUM_THREADS=1 .venv/bin/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

slow: install
	OMP_NUM_THREADS=1 .venv/bin/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder -m slow tests

# that no benchmark and no example has rotted; minutes, so CI runs it and `make test` does not; each file in one process, since some tests read what others wrote
smoke: install
	OMP_NUM_THREADS=1 .venv/bin/python -m pytest -n 2 --dist loadfile -m smoke tests

lint: install
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy

# not --quiet, which hides warnings from --strict
docs: install
	NO_MKDOCS_2_WARNING=1 .venv/bin/python -m mkdocs build --strict --clean

# offline, once everything is installed; `tools/release.py --final` before an upload
package: install
	.venv/bin/python tools/release.py

bench: install
	.venv/bin/python -m benchmarks.bench --output benchmarks/results/bench.json
