# `make help` lists the targets. Each creates what it needs, first of all the environment in .venv; for that only
# Python >= 3.11 has to be there (uv is used where it is found).

BIN := .venv/bin
READY := .venv/.ready
SITE_READY := .venv/.site-ready
RELEASE := build/release
RELEASE_READY := $(RELEASE)/.ready
IMAGE_READY := build/image/.ready
# one process more than there are processors, as some tests wait; the tests of one file share theirs, and what they start
PROCESSES := $(shell expr $$(getconf _NPROCESSORS_ONLN) + 1)
PYTEST := $(BIN)/pytest --numprocesses=$(PROCESSES) --dist=loadfile
COVERED := --cov=trainop/engine --cov-report=term-missing:skip-covered --cov-fail-under=100
# what CI asks of the same run: the acceptance cases, and each branch of the engine
ALL_AT_ONCE := $(if $(CI),--cases-too $(COVERED))
PYTHON = $(shell for p in python3.13 python3.12 python3.11 python3; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && { echo $$p; break; }; done)

# what meets a real API server, or claims what one does
ON_KUBERNETES := tests/conformance tests/server tests/local/semantics \
	tests/run/test_tour.py tests/run/test_exec.py tests/run/test_port_forward.py

# the time in archives and in the image, so that a commit is always built to the same bytes
SOURCE_DATE_EPOCH ?= $(shell git log -1 --format=%ct 2>/dev/null || echo 1580601600)
export SOURCE_DATE_EPOCH

# compiled once, not in each of the hundreds of programs that the tests start
unexport PYTHONDONTWRITEBYTECODE

# Figures are compared with those measured on the oldest release, and the Go operators and Kueue were tried on it alone;
# kubectl 1.33 may be one release older than the API server, not four.
bench bench-quick bench-runtime profile test-takeover test-schedulers test-kubectl: export TRAINOP_KUBERNETES ?= 1.34

# of `make container`
ENGINE ?= podman
VERSION = $(shell sed -n 's/^__version__ = "\(.*\)"$$/\1/p' trainop/__init__.py)

BENCH := PATH="$$PATH:/usr/local/go/bin" $(BIN)/python -m e2e.bench

.DEFAULT_GOAL := help
.PHONY: help bench bench-quick bench-runtime profile demo test test-busy test-user test-awkward test-webhooks test-kubectl test-mpi test-page test-chart test-kubernetes test-schedulers test-takeover simulate frameworks test-sdk test-trainer di-engine test-progress test-survive test-podman fuzz coverage lint type contracts format manifests manifests-check docs new-kind dist test-wheel container image test-image test-node e2e site cases cases-floor lock clean

help:  ## this list
	@sed -nE 's/^([a-z0-9-]+):.*  ## (.*)/  \1\t\2/p' $(MAKEFILE_LIST) | expand -t 18

demo: $(READY)  ## a PyTorchJob trains here, one master and three workers; then one that fails and recovers
	@PATH="$(CURDIR)/$(BIN):$$PATH" trainop run examples/pytorch/train.yaml
	@PATH="$(CURDIR)/$(BIN):$$PATH" trainop run examples/pytorch/recover.yaml

test: $(READY)  ## all tests; those on a real kube-apiserver need Go once (about 10 minutes, then cached)
	@$(BIN)/python -m e2e.monitoring || test $$? = 3
	@$(BIN)/python -m e2e.cluster build; case $$? in \
	0) $(PYTEST) $(ALL_AT_ONCE) ;; \
	3) echo "so the tests that need a real kube-apiserver are skipped"; \
	   test -z "$$CI" || echo "this run fails: CI needs Go for the tests on a real kube-apiserver"; \
	   $(PYTEST) -m "not server" && test -z "$$CI" ;; \
	*) echo "kube-apiserver could not be built: this run fails, the tests without it follow"; \
	   $(PYTEST) -m "not server"; exit 1 ;; \
	esac

test-busy: $(READY)  ## all tests beside a busy loop on each processor; TARGET=test-user for those
	@for n in $$(seq $$(getconf _NPROCESSORS_ONLN)); do timeout 7200 sh -c 'while :; do :; done' & loops="$$loops $$!"; done; \
	trap "kill $$loops" EXIT; $(MAKE) --no-print-directory $(or $(TARGET),test)

test-user: $(READY)  ## all tests as an ordinary user, in a private copy of this folder (as root, on Linux)
	@$(BIN)/python -m e2e.cluster build
	@$(BIN)/python -m e2e.as_user -m pytest -p no:cacheprovider --numprocesses=$(PROCESSES) --dist=loadfile

test-awkward: $(READY)  ## the same in a copy below /tmp, at a path with a space, with a read-only home (as root, on Linux)
	@$(BIN)/python -m e2e.cluster build
	@$(BIN)/python -m e2e.as_user --awkward -m pytest -p no:cacheprovider --numprocesses=$(PROCESSES) --dist=loadfile

test-webhooks: $(READY)  ## webhooks on a real kube-apiserver, with a change of the CA while jobs are created
	@$(BIN)/python -m e2e.cluster build
	@$(BIN)/pytest --slow tests/server/test_webhooks.py tests/server/test_webhook_operators.py tests/server/test_di_webhook.py

test-kubectl: $(READY)  ## the README's tour, exec, port-forward and a table of commands, also with kubectl 1.33 (built once, some minutes)
	@$(BIN)/python -m e2e.cluster build etcd kube-apiserver kubectl kubectl-1.33
	@$(BIN)/pytest tests/run/test_tour.py tests/run/test_exec.py tests/run/test_port_forward.py tests/run/test_survive.py \
		tests/conformance/test_kubectl.py

test-podman: $(READY)  ## containers from images, run by podman, which has to be installed; nothing is pulled from outside
	@$(BIN)/pytest --slow tests/local/podman

test-chart: $(READY)  ## the Helm charts: what helm renders, each value, upgrades on a real kube-apiserver; Go builds helm once
	@$(BIN)/python -m e2e.cluster build etcd kube-apiserver kubectl helm
	@$(BIN)/pytest e2e/chart
	@$(BIN)/pytest --slow tests/server/test_upgrades.py

test-kubernetes: $(READY) image  ## server tests, conformance, image, charts and real node on the oldest and the newest Kubernetes; RELEASES="1.36" for others (as root)
	@test "$$(id -u)" = 0 || { echo "a real node needs root" >&2; exit 1; }
	@for release in $(or $(RELEASES),$$($(BIN)/python -m e2e.cluster releases)); do \
		export TRAINOP_KUBERNETES=$$release; printf '\n=== Kubernetes %s\n' $$release; \
		$(BIN)/python -m e2e.cluster build node helm || { failed="$$failed $$release:build"; continue; }; \
		$(PYTEST) $(ON_KUBERNETES) || failed="$$failed $$release:tests"; \
		$(BIN)/pytest --quiet e2e/image e2e/chart || failed="$$failed $$release:image"; \
		$(MAKE) --no-print-directory e2e JOB=quick || failed="$$failed $$release:node"; \
	done; test -z "$$failed" || { echo "failed:$$failed" >&2; exit 1; }
	@$(PYTEST) --slow --dist=load tests/server/test_api_server_upgrade.py tests/server/test_mixed_api_servers.py

test-schedulers: $(READY)  ## jobs beside Kueue and gang schedulers on simulated nodes; Go builds them once
	@$(BIN)/python -m e2e.cluster build etcd kube-apiserver kube-controller-manager kube-scheduler kwok kueue \
		coscheduling volcano-scheduler volcano-controller-manager
	@$(BIN)/python -m e2e.cluster build --release 1.37 kube-apiserver kube-controller-manager kube-scheduler
	@$(BIN)/pytest --numprocesses=2 --dist=loadfile --durations=10 e2e/schedulers

test-page: $(READY)  ## the page behind a real oauth2-proxy, on a kube-apiserver that trusts the users' provider; Go builds the proxy once
	@$(BIN)/python -m e2e.cluster build etcd kube-apiserver oauth2-proxy
	@$(BIN)/pytest e2e/page

test-takeover: $(READY)  ## ours replaces the Go operators while jobs run, and back again; twenty minutes, and Go to build them once
	@PATH="$$PATH:/usr/local/go/bin" $(BIN)/python -m e2e.cluster build
	@PATH="$$PATH:/usr/local/go/bin" $(BIN)/python -m e2e.peers
	@$(BIN)/pytest --numprocesses=2 --dist=load e2e/takeover

simulate: $(READY)  ## the whole operator in virtual time with faults: SEEDS=300 of them, or one again by SEED=n
	@$(BIN)/python -m tests.simulation --family $(or $(FAMILY),all) $(if $(SEED),--seed $(SEED) --log,--first $(or $(FIRST),0) --seeds $(or $(SEEDS),300))

frameworks: $(READY)  ## PyTorch, TensorFlow, Paddle, JAX and XGBoost train under the operator, and the quickstart; installs several GB, once
	@$(BIN)/python -m e2e.frameworks
	@$(BIN)/python -m e2e.frameworks.quickstart

test-sdk: $(READY)  ## every call of the kubeflow-training SDK (PyPI) on the embedded cluster; VERSION=1.9.4 for one; installs it once
	@$(BIN)/python -m e2e.sdk $(VERSION)

test-trainer: $(READY)  ## TrainerClient of the kubeflow SDK (PyPI) on the embedded cluster; installs it once
	@$(BIN)/python -m e2e.trainer

test-mpi: $(READY)  ## Open MPI and MPICH run on the embedded cluster, over ssh and by kubectl exec (needs Debian's packages)
	@$(BIN)/python -m e2e.mpi

di-engine: $(READY)  ## DI-engine's own client (PyPI) talks to our di-server on a real kube-apiserver; installs the client once
	@$(BIN)/python -m e2e.cluster build
	@$(BIN)/python -m e2e.di_engine

test-progress: $(READY)  ## transformers and the SDK kubeflow report progress, unchanged; on a real kube-apiserver; installs them once
	@$(BIN)/python -m e2e.cluster build
	@$(BIN)/python -m e2e.progress

test-survive: $(READY)  ## PyTorch, transformers and MPI survive preemption, drain, death and stall in `trainop run`; installs 6 GB, once
	@$(BIN)/python -m e2e.survive

fuzz: $(READY)  ## schemathesis sends di-server what its OpenAPI document allows, and what not; installs schemathesis once
	@$(BIN)/python -m e2e.fuzz

coverage: $(READY)  ## every branch of the engine is covered by the tests of what is made of it
	@$(PYTEST) -q $(COVERED) tests/engine tests/kinds tests/controllers tests/progress tests/diserver

lint: $(READY)  ## ruff: rules and format
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check

type: $(READY)  ## mypy, strict
	@$(BIN)/mypy

contracts: $(READY)  ## who may import whom
	@$(BIN)/lint-imports

format: $(READY)  ## rewrite the files as ruff wants them
	@$(BIN)/ruff format
	@$(BIN)/ruff check --fix

manifests: $(READY)  ## write the CRDs, RBAC and Deployment anew from the values that run
	@$(BIN)/trainop manifests

manifests-check: $(READY)  ## the manifests are what would be written
	@$(BIN)/trainop manifests --check

docs: $(READY)  ## write the pages of kinds and flags anew from the values that run, and the tables of the migrate pages
	@$(BIN)/python -m e2e.docs

new-kind: $(READY)  ## the file and all rows of a new kind of job, NAME=Foo for FooJob, to be completed
	@$(BIN)/python -m e2e.new_kind $(NAME)

dist: $(RELEASE_READY)  ## wheel and source archive in dist/; one commit always gives the same bytes
	@rm -rf dist
	@$(RELEASE)/bin/python -m build --no-isolation --quiet

test-wheel: $(READY) dist  ## the wheel in a new environment: its commands, and the README's tour (with kubectl)
	@$(BIN)/python -m e2e.cluster build kubectl
	@$(BIN)/pytest --quiet e2e/wheel

container: $(if $(findstring @sha256:,$(BASE)),dist)  ## the image of the Containerfile, on BASE=docker.io/library/python:3.13-slim@sha256:… (by podman, or ENGINE=docker)
	@case "$(BASE)" in *@sha256:*) ;; *) \
		echo "make container: BASE names no digest; docs/image.md shows how to look it up" >&2; exit 2 ;; esac
	@$(ENGINE) build --file Containerfile --build-arg BASE=$(BASE) --tag trainop:$(VERSION) .

image: dist  ## the operator's image and its SBOM in build/image, from Debian packages and wheels (on Debian, without Docker)
	@$(RELEASE)/bin/python -m e2e.image

test-image: $(READY) image  ## what the image contains, its SBOM, and the operator in it on a real kube-apiserver (as root)
	@test "$$(id -u)" = 0 || { echo "the image is run with mounts of its own, which needs root" >&2; exit 1; }
	@$(BIN)/python -m e2e.cluster build
	@$(BIN)/pytest --quiet e2e/image/test_image.py

test-node: $(READY) image  ## the manifests and the image on a real node with kubelet and containerd (as root; built once)
	@test "$$(id -u)" = 0 || { echo "a real node needs root" >&2; exit 1; }
	@$(BIN)/python -m e2e.cluster build node
	@$(BIN)/pytest --quiet e2e/image/test_deployment.py

e2e: $(READY)  ## real frameworks and faults on a real node, as root, up to an hour; a part by JOB=tfjob; those of several GB, too, by FRAMEWORKS=full
	@$(BIN)/python -m e2e.realnode check $(JOB)
	@$(MAKE) --no-print-directory $(IMAGE_READY)
	@$(BIN)/python -m e2e.cluster build node
	@$(BIN)/pytest --durations=0 $(if $(JOB),$(wildcard e2e/realnode/test_$(JOB).py e2e/realnode/test_$(JOB)_*.py),e2e/realnode) --frameworks=$(or $(FRAMEWORKS),$(if $(JOB),full))

site: $(SITE_READY)  ## docs/ as a website in build/site, with every link checked; needs no network once it is installed
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

cases: $(READY)  ## acceptance cases of the specifications, clause by clause: tests, results, what is missing; fails below the floor
	@$(BIN)/python -m e2e.cluster build
	@$(PYTEST) -q --cases

cases-floor: $(READY)  ## the same, and what is reached becomes the floor
	@$(BIN)/python -m e2e.cluster build
	@$(PYTEST) -q --cases-floor

bench: $(READY)  ## ours and the Go operators under load, side by side; 100 minutes, or MINUTES=60 (Go, once to build them)
	@$(BENCH) run $(if $(MINUTES),--minutes $(MINUTES))

bench-quick: $(READY)  ## the same, small: under five minutes
	@$(BENCH) quick

bench-runtime: $(READY)  ## informer and queue beside plain dictionaries, what hostile jobs cost, and whether the limits are kept
	@$(BENCH).runtime
	@$(BENCH).hostile
	@$(BENCH).neighbours

profile: $(READY)  ## where the operator's time and memory go: two flame graphs in e2e/bench/report, a few minutes
	@$(BENCH).profile s1
	@$(BENCH).profile memory

lock:  ## write constraints*.txt anew: the newest versions that pyproject.toml allows (needs uv)
	uv pip compile --quiet --universal --python-version 3.11 --upgrade --group dev --group bench \
		--extra local --extra legacy-auth --no-annotate --no-header --no-emit-index-url pyproject.toml -o constraints.txt
	uv pip compile --quiet --universal --python-version 3.11 --upgrade --group docs --constraints constraints.txt \
		--no-annotate --no-header --no-emit-index-url -o constraints-docs.txt
	uv pip compile --quiet --universal --python-version 3.11 --upgrade --group release --constraints constraints.txt \
		--no-annotate --no-header --no-emit-index-url -o constraints-release.txt

clean:  ## remove what make and the tools have made here
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .coverage htmlcov build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# constraints.txt names every package with its version, so that nothing has to be resolved; old pips can read it.
$(READY): pyproject.toml constraints.txt
	@set -e; \
	if command -v uv >/dev/null; then \
		test -x $(BIN)/python || uv venv --quiet --python '>=3.11,<3.14' .venv; \
		uv pip install --quiet --python $(BIN)/python -r constraints.txt -e '.[local,legacy-auth]'; \
	else \
		python="$(PYTHON)"; \
		test -n "$$python" || { echo "Python >= 3.11 is needed, and none was found on the PATH" >&2; exit 1; }; \
		$$python -c 'import ensurepip, venv' 2>/dev/null || \
			{ echo "$$python cannot make environments: install its venv package (Debian: apt install python3-venv)" >&2; exit 1; }; \
		test -x $(BIN)/pip || $$python -m venv --clear .venv; \
		$(BIN)/python -m pip install --quiet --disable-pip-version-check -r constraints.txt -e '.[local,legacy-auth]'; \
	fi
	@touch $@

# Apart from the rest, so that nobody waits for a website generator who wants to run a test.
$(SITE_READY): $(READY) constraints-docs.txt
	@if command -v uv >/dev/null; then uv pip install --quiet --python $(BIN)/python -r constraints-docs.txt; \
	else $(BIN)/python -m pip install --quiet --disable-pip-version-check -r constraints-docs.txt; fi
	@touch $@

# The tools of a release in an environment of their own; the operator is not installed there.
$(RELEASE_READY): constraints-release.txt
	@set -e; \
	if command -v uv >/dev/null; then \
		test -x $(RELEASE)/bin/python || uv venv --quiet --python '>=3.11,<3.14' $(RELEASE); \
		uv pip install --quiet --python $(RELEASE)/bin/python -r constraints-release.txt; \
	else \
		test -x $(RELEASE)/bin/pip || $(PYTHON) -m venv --clear $(RELEASE); \
		$(RELEASE)/bin/python -m pip install --quiet --disable-pip-version-check -r constraints-release.txt; \
	fi
	@touch $@

# The operator's image, made anew only if its sources have changed.
$(IMAGE_READY): $(shell find trainop e2e/image -name '*.py') pyproject.toml constraints.txt constraints-release.txt
	@$(MAKE) --no-print-directory image
	@touch $@
