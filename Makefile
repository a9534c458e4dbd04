# Start with `make run` and `make test`. Each installs what it needs in .venv, from locked requirements, and needs only
# git, make and Python 3.11 or later.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
JOB     ?= examples/quickstart.yaml
RUNTIME ?= auto
# A Python that has PyTorch, for `make test-torch`. PyPI's package for Linux includes CUDA and takes several gigabytes.
TORCH_PYTHON ?= /usr/bin/python3

.PHONY: help run test bytecode test-cluster test-clients test-tensorflow test-paddle test-jax test-xgboost test-torch check bench bench-operator bench-compare deploy soak mutate lock clean

help:            ## List the targets
	@grep -hE '^[a-z-]+: .*##' $(MAKEFILE_LIST) | sed 's/:.*## / \t/' | expand -t 17

run: $(VENV)/.run  ## Train the quickstart on this machine (RUNTIME=process: without namespaces; JOB=file.yaml: your job)
	$(BIN)/trainwright run --runtime $(RUNTIME) $(JOB)

test: bytecode check  ## Run all gates: ruff, mypy, import contracts, pytest
	$(BIN)/pytest -n auto --dist worksteal

# On a clean checkout, pytest rewrites the assertions of all tests, and every worker would do so: 12 seconds of CPU time
# each. One process does it here, in the background, while mypy uses the other CPU.
bytecode: $(VENV)/.dev
	@[ -d tests/core/__pycache__ ] || $(BIN)/pytest --collect-only -qq > /dev/null 2>&1 < /dev/null &

test-cluster: $(VENV)/.dev  ## Test the operator and the node agent on a real Kubernetes control plane: see docs/testing.md
	@$(BIN)/python tests/cluster/cluster_binaries.py || true # shows what it builds, unlike a worker of pytest
	$(BIN)/pytest -n 2 --dist loadfile tests/cluster

test-clients: $(VENV)/.clients  ## Test the API of the background engine with Python clients: see docs/testing.md
	$(BIN)/pytest -m clients tests/cluster/test_cluster_api_python.py

test-tensorflow: $(VENV)/.tensorflow  ## Train TFJobs with TensorFlow: 1.6 GB to install
	$(BIN)/pytest -m tensorflow tests/e2e tests/cluster/test_cluster_tensorflow.py

test-paddle: $(VENV)/.paddle  ## Train PaddleJobs with PaddlePaddle: 0.9 GB to install
	$(BIN)/pytest -m paddle tests/e2e tests/cluster/test_cluster_paddlepaddle.py

test-jax: $(VENV)/.jax  ## Train JAXJobs with JAX: 0.6 GB to install
	$(BIN)/pytest -m jax tests/e2e tests/cluster/test_cluster_jax.py

test-xgboost: $(VENV)/.xgboost  ## Train XGBoostJobs with XGBoost: 0.3 GB to install
	$(BIN)/pytest -m xgboost tests/e2e tests/cluster/test_cluster_xgboost.py

test-torch: $(VENV)/.torch  ## Train PyTorchJobs with PyTorch: see docs/testing.md; TORCH_PYTHON=file: a Python that has it
	$(BIN)/pytest -m torch tests/e2e tests/cluster/test_cluster_torch.py

check: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(VENV)/.run  ## Measure reconcile and the embedded engine: see bench/README.md
	$(BIN)/python bench/reconcile.py
	$(BIN)/python bench/manifest.py
	$(BIN)/python bench/store.py
	$(BIN)/python bench/journal.py
	$(BIN)/python bench/sandbox.py
	$(BIN)/python bench/embedded.py
	$(BIN)/python bench/explain.py

bench-operator: $(VENV)/.run  ## Measure the operator on a real API server, compared with a floor: a quarter of an hour
	$(BIN)/python bench/operator

bench-compare: $(VENV)/.run  ## Compare the operator with training-operator in rounds: an hour, resumable; see bench/README.md
	$(BIN)/python bench/operator --compare $(COMPARE)

deploy: $(VENV)/.run  ## Regenerate deploy/: the output of crds and manifests, and the examples
	$(BIN)/trainwright crds > deploy/v1/crd.yaml
	$(BIN)/trainwright manifests --no-crds > deploy/v1/operator.yaml
	cp examples/quickstart.yaml examples/genericjob/*.yaml deploy/examples/
	cp examples/tfjob/*.yaml deploy/examples/tfjob/
	cp examples/aitrainingjob/*.yaml deploy/examples/aitrainingjob/
	cp examples/paddlejob/*.yaml deploy/examples/paddlejob/
	cp examples/jaxjob/*.yaml deploy/examples/jaxjob/
	cp examples/xgboostjob/*.yaml deploy/examples/xgboostjob/
	cp examples/pytorchjob/*.yaml deploy/examples/pytorchjob/
	cp examples/kubeflow-paddlejob/*.yaml deploy/examples/kubeflow-paddlejob/

soak: $(VENV)/.dev  ## Kill the background engine, its agents and supervisors 500 times while jobs run: see docs/testing.md
	PYTHONPATH=tests $(BIN)/python tests/e2e/e2e_soak.py $(SOAK)

mutate: $(VENV)/.dev  ## Run mutation tests of core/: see docs/testing.md
	$(BIN)/python tools/mutate.py

lock:            ## Renew the lock files from pyproject.toml (needs uv)
	uv pip compile -q --universal --generate-hashes --no-emit-index-url --no-header --extra build pyproject.toml -o requirements/run.txt
	uv pip compile -q --universal --generate-hashes --no-emit-index-url --no-header --extra build --extra dev pyproject.toml -o requirements/dev.txt
	uv pip compile -q --universal --generate-hashes --no-emit-index-url --no-header --extra tensorflow -c requirements/dev.txt pyproject.toml -o requirements/tensorflow.txt
	uv pip compile -q --universal --generate-hashes --no-emit-index-url --no-header --extra paddle pyproject.toml -o requirements/paddle.txt
	uv pip compile -q --universal --generate-hashes --no-emit-index-url --no-header --extra jax -c requirements/dev.txt pyproject.toml -o requirements/jax.txt
	uv pip compile -q --universal --generate-hashes --no-emit-index-url --no-header --extra xgboost -c requirements/dev.txt pyproject.toml -o requirements/xgboost.txt
	uv pip compile -q --universal --generate-hashes --no-emit-index-url --no-header --extra clients -c requirements/dev.txt pyproject.toml -o requirements/clients.txt

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis mutants

# -- set-up ---------------------------------------------------------------------------------------------------------

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "trainwright needs Python 3.11 or later; $(PYTHON) is $$($(PYTHON) --version 2>&1). Try: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV) \
	  || { echo "could not create $(VENV): this Python has no venv module (on Debian: apt-get install python3-venv)" >&2; exit 1; }

$(VENV)/.run: requirements/run.txt pyproject.toml | $(BIN)/python
	$(BIN)/pip install -q --disable-pip-version-check --require-hashes -r requirements/run.txt
	$(BIN)/pip install -q --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

$(VENV)/.dev: requirements/dev.txt pyproject.toml | $(BIN)/python
	$(BIN)/pip install -q --disable-pip-version-check --require-hashes -r requirements/dev.txt
	$(BIN)/pip install -q --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@ $(VENV)/.run

$(VENV)/.tensorflow: requirements/tensorflow.txt | $(VENV)/.dev
	$(BIN)/pip install -q --disable-pip-version-check --require-hashes -r requirements/tensorflow.txt
	@touch $@

# PaddlePaddle has its own environment, because it needs another protobuf than TensorFlow. One of its packages exists
# only as source; its build dependency is installed first, so that pip downloads nothing that is not locked.
$(VENV)/.paddle: requirements/paddle.txt | $(VENV)/.dev
	$(BIN)/python -m venv $(VENV)/paddle
	awk '/^[a-z]/ { first = /^setuptools==/ } first' requirements/paddle.txt > $(VENV)/paddle/first.txt
	$(VENV)/paddle/bin/pip install -q --disable-pip-version-check --require-hashes -r $(VENV)/paddle/first.txt
	$(VENV)/paddle/bin/pip install -q --disable-pip-version-check --require-hashes --no-build-isolation -r requirements/paddle.txt
	@touch $@

# JAX and XGBoost have their own environments, so that the tests show that each needs nothing of the others.
$(VENV)/.jax $(VENV)/.xgboost: $(VENV)/.%: requirements/%.txt | $(VENV)/.dev
	$(BIN)/python -m venv $(VENV)/$*
	$(VENV)/$*/bin/pip install -q --disable-pip-version-check --require-hashes -r requirements/$*.txt
	@touch $@

# A folder with the programs that pods find first. It is made anew each time, because TORCH_PYTHON may be another one.
.PHONY: $(VENV)/.torch
$(VENV)/.torch: | $(VENV)/.dev
	@$(TORCH_PYTHON) -c 'import torch' 2> /dev/null \
	  || { echo "$(TORCH_PYTHON) has no PyTorch. On Debian: apt-get install --no-install-recommends python3-torch. Or name another Python: make TORCH_PYTHON=file test-torch" >&2; exit 1; }
	@mkdir -p $(VENV)/torch/bin
	@printf '#!/bin/sh\nexec "%s" "$$@"\n' $(TORCH_PYTHON) > $(VENV)/torch/bin/python3
	@{ echo "#!$(TORCH_PYTHON)"; cat tools/torchrun.py; } > $(VENV)/torch/bin/torchrun
	@chmod +x $(VENV)/torch/bin/python3 $(VENV)/torch/bin/torchrun

# Python clients of Kubernetes have their own environment, so that no other test can import them by mistake.
$(VENV)/.clients: requirements/clients.txt | $(VENV)/.dev
	$(BIN)/python -m venv $(VENV)/clients
	$(VENV)/clients/bin/pip install -q --disable-pip-version-check --require-hashes -r requirements/clients.txt
	@touch $@
