# Everything runs in .venv, which is made from constraints.txt the first time it is needed.
PYTHON ?= python3
BIN := .venv/bin
RUN ?= runs/mountaincar
export OMP_NUM_THREADS ?= 1

.PHONY: help install train test test-slow test-faults test-ray check format explorer-frontend demo animation benchmarks report docs tutorial dist clean

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 20

install: .venv/installed  ## make .venv with the pinned versions

.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev,docs]'
	@touch $@

train: install  ## train on MountainCarContinuous-v0, evaluate, draw the curve and the policy
	$(BIN)/imel train MountainCarContinuous-v0 --total-timesteps 60000 --run-dir $(RUN) --overwrite

test: install  ## run the tests (a few minutes on two cores)
	$(BIN)/python -m pytest -n 2

test-slow: install  ## run the checks that take long: learning, cost against TRPO, the whole tutorial
	$(BIN)/python -m pytest --timeout 3600 -m slow -s tests/test_learning.py tests/test_docs.py tests/test_report_store.py

test-faults: install  ## run the long fault trials: kills, mutated files, a soak (minutes)
	$(BIN)/python -m pytest --timeout 3600 -m "slow or not slow" -n 2 -rP tests/faults tests/test_environments.py

test-ray: install  ## run the long trials of Ray and of the search: machines and commands killed
	$(BIN)/python -m pytest --timeout 3600 -m slow tests/test_ray.py tests/test_tune.py

check: install  ## lint, format, types, import directions
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: install  ## let ruff format the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

explorer-frontend:  ## bundle the explorer's page again (needs node and npm)
	cd explorer-frontend && npm ci --no-audit --no-fund && npm run build

demo: install  ## make the run that ships with the package anew (a minute)
	$(BIN)/python tools/demo.py

animation: install  ## make the README's animated picture of the demo anew (needs chromium; minutes)
	$(BIN)/python tools/animation.py

benchmarks: install  ## time learning on two tasks, and the explorer with 100,000 memories (minutes)
	$(BIN)/python -m benchmarks.speed --tasks hopper halfcheetah --steps 10000 --memories 8192 65536
	$(BIN)/python -m benchmarks.explorer

report: install  ## draw the benchmark's tables and figures anew from results/
	$(BIN)/imel report results/paper --out docs/images/results --into docs/results.md
	$(BIN)/imel report figure2 results/paper --out docs/images/paper
	$(BIN)/imel report figure3 results/paper --out docs/images/paper
	$(BIN)/imel report results/long --out docs/images/results-million --into docs/results-million.md
	$(BIN)/imel report results/untuned --out docs/images/results-untuned --into docs/results-untuned.md

docs: install  ## write the generated tables, and build the documentation into docs/_build
	PYTHONPATH=. $(BIN)/python tests/tables.py
	$(BIN)/sphinx-build -W -q -b html docs docs/_build

tutorial: install  ## run docs/tutorial.md, and put what it prints and draws into it (minutes)
	$(BIN)/python tests/pages.py docs/tutorial.md

dist: install  ## build wheel and sdist into dist/, and train with the wheel in a clean environment
	rm -rf build dist
	$(BIN)/python -m build
	$(PYTHON) -m venv build/venv
	build/venv/bin/python -m pip install --quiet --constraint constraints.txt dist/*.whl
	build/venv/bin/python tests/installed.py

clean:  ## remove what the other targets made
	rm -rf .venv build dist docs/_build .mypy_cache .ruff_cache .pytest_cache
