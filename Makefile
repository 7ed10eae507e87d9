# Everything a developer or CI runs. `make` alone lists the targets.
.DEFAULT_GOAL := help
.NOTPARALLEL:
SHELL := /bin/sh

VENV := .venv
BIN := $(VENV)/bin
PARTS := .parts
VENV_STAMP := $(VENV)/.stamp
PARTS_STAMPS := $(PARTS)/rocketmq/.stamp $(PARTS)/node/.stamp $(PARTS)/python/.stamp
HELM := v3.18.4
OPERATOR := v0.83.0
DEPLOY_STAMPS := $(PARTS)/helm/.stamp-$(HELM) $(PARTS)/definitions/.stamp-$(OPERATOR) $(PARTS)/packaging/.stamp

# The first Python that is new enough and can make virtual environments; PYTHON=… chooses another.
FIND_PYTHON = for candidate in $(PYTHON) python3.11 python3.12 python3.13 python3; do \
	  if "$$candidate" -c 'import sys, ensurepip, venv; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; \
	  then found="$$candidate"; break; fi; done; \
	if [ -z "$$found" ]; then echo "no Python 3.11 or newer with venv here: apt-get install python3-venv" >&2; exit 1; fi

TESTED := proxy limiter admin tests

.PHONY: help setup packages parts demo test lint types fast unit fuzz browser operator spark integration deploy chroot dist coverage bench reference constraints format clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: packages $(VENV_STAMP) ## check the system's packages and make .venv

packages:
	@PYTHON="$(PYTHON)" sh tests/integration/packages.sh python integration browser spark

$(VENV_STAMP): pyproject.toml constraints.txt tests/plugin/pyproject.toml
	@PYTHON="$(PYTHON)" sh tests/integration/packages.sh python
	@set -e; found=; $(FIND_PYTHON); [ -x $(BIN)/python ] || "$$found" -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]' -e tests/plugin
	@touch $@

parts: setup $(PARTS_STAMPS) ## fetch the real broker and clients of the integration tests

$(PARTS)/rocketmq/.stamp: tests/integration/rocketmq/pom.xml
	rm -rf $(@D) && mkdir -p $(@D)
	mvn -q -B -f $< dependency:copy-dependencies -DoutputDirectory="$(CURDIR)/$(@D)/lib"
	@touch $@

$(PARTS)/node/.stamp: tests/integration/clients/package.json
	rm -rf $(@D) && mkdir -p $(@D) && cp $< $(@D)
	cd $(@D) && npm install --silent --no-audit --no-fund --no-package-lock
	@touch $@

$(PARTS)/python/.stamp: tests/integration/clients/requirements.txt
	rm -rf $(@D)
	$(BIN)/python -m venv $(@D)
	$(@D)/bin/pip install --quiet --disable-pip-version-check -r $<
	@touch $@

$(PARTS)/helm/.stamp-$(HELM):
	@sh tests/integration/packages.sh deploy
	rm -rf $(@D) && mkdir -p $(@D)
	GOBIN="$(CURDIR)/$(@D)" GOFLAGS=-trimpath CGO_ENABLED=0 go install helm.sh/helm/v3/cmd/helm@$(HELM)
	@touch $@

# What ServiceMonitor and PrometheusRule are, which Kubernetes itself does not know.
$(PARTS)/definitions/.stamp-$(OPERATOR):
	@sh tests/integration/packages.sh deploy
	rm -rf $(@D) && mkdir -p $(@D)
	@set -e; module=github.com/prometheus-operator/prometheus-operator@$(OPERATOR); \
	folder=$$(go mod download -json $$module | sed -n 's/.*"Dir": "\(.*\)".*/\1/p'); \
	for kind in servicemonitors prometheusrules; do \
	  install -m 0644 "$$folder/example/prometheus-operator-crd/monitoring.coreos.com_$$kind.yaml" $(@D)/$$kind.yaml; \
	done
	@touch $@

$(PARTS)/packaging/.stamp: deploy/container/tools.txt | $(VENV_STAMP)
	rm -rf $(@D)
	$(BIN)/python -m venv $(@D)
	$(@D)/bin/pip install --quiet --disable-pip-version-check -r $<
	@touch $@

demo: $(VENV_STAMP) ## one runaway and several quiet topics, live, until Ctrl-C or SECONDS=20
	$(BIN)/sluice demo $(if $(SECONDS),--seconds $(SECONDS))

test: lint types fast deploy spark operator integration coverage ## everything: lint, types, fast tests, deployment, analysis, operator's side, integration tests

lint: $(VENV_STAMP) ## ruff, formatting, the import contracts
	$(BIN)/ruff check $(TESTED)
	$(BIN)/ruff format --check $(TESTED)
	$(BIN)/lint-imports

types: $(VENV_STAMP) ## mypy --strict over the packages and the test harness
	$(BIN)/mypy --strict
	$(BIN)/mypy --strict tests/integration/harness
	$(BIN)/mypy --strict tests/support/playbook
	$(BIN)/mypy --strict tests/plugin/sluice_lines
	MYPYPATH=tests/support $(BIN)/mypy --strict tests/bench tests/support/reference tests/support/claims.py

fast: $(VENV_STAMP) ## unit and fuzz tests with coverage
	$(BIN)/python -m pytest tests/unit tests/fuzz --cov --cov-report= -n auto --maxprocesses 4

unit: $(VENV_STAMP) ## unit tests alone
	$(BIN)/python -m pytest tests/unit

fuzz: $(VENV_STAMP) ## fuzz tests alone; SLUICE_FUZZ_FACTOR=20 makes 20 times the cases
	$(BIN)/python -m pytest tests/fuzz

browser: setup ## the page in a real Chromium
	$(BIN)/python -m pytest tests/browser

# None of these measures a rate, so they may share the machine. Each worker has brokers and sidecars of its own.
operator: parts ## API, page, rules, edits and attacks against a real sluice, two at a time
	$(BIN)/python -m pytest tests/integration tests/browser -m "not alone" -n 2 --dist loadfile

# Each of the two has a Spark of its own, whose planner is one thread. Files with few tests are not the quick ones here.
spark: $(VENV_STAMP) ## the analysis of the rejection log in a real Spark, two tests at a time
	@sh tests/integration/packages.sh spark
	$(BIN)/python -m pytest tests/spark -n 2 --dist loadfile --no-loadscope-reorder

integration: parts ## real clients and a real broker through sluice
	$(BIN)/python -m pytest tests/integration -m alone

deploy: $(VENV_STAMP) $(DEPLOY_STAMPS) ## packages, unit, chart, rules and dashboard, each by its own validator
	@sh tests/integration/packages.sh deploy
	$(BIN)/python -m pytest tests/deploy

chroot: ## image, wheel and unit in a bare Debian (debootstrap, buildah, systemd-nspawn); needs root and ten minutes
	@sh tests/integration/packages.sh chroot
	sh deploy/container/chroot.sh $(PARTS)/chroot
	sh deploy/container/image.sh $(PARTS)/chroot
	sh deploy/systemd/nspawn.sh $(PARTS)/chroot

dist: $(PARTS)/packaging/.stamp ## wheel, source distribution and bill of materials, in dist
	rm -rf dist $(PARTS)/packaging/run
	PIP_CONSTRAINT=constraints.txt PIP_BUILD_CONSTRAINT=constraints.txt $(PARTS)/packaging/bin/python -m build --quiet
	$(BIN)/python -m venv --without-pip $(PARTS)/packaging/run
	$(PARTS)/packaging/bin/pip --python $(PARTS)/packaging/run/bin/python install --quiet --disable-pip-version-check \
		-c constraints.txt dist/*.whl
	$(PARTS)/packaging/bin/cyclonedx-py environment --pyproject pyproject.toml --mc-type application \
		--output-reproducible --validate --output-file "dist/$$(basename dist/*.tar.gz .tar.gz).cdx.json" \
		$(PARTS)/packaging/run/bin/python
	rm -rf $(PARTS)/packaging/run

# With COVERED_SIDECARS=1 the sluice processes of the integration tests leave coverage files of their own.
coverage:
	@ls .coverage.* >/dev/null 2>&1 || exit 0; $(BIN)/coverage combine --append --quiet
	$(BIN)/coverage report

bench: $(VENV_STAMP) ## throughput and latency against a plain relay
	@sh tests/integration/packages.sh bench
	$(BIN)/python -m pytest --quiet tests/bench
	$(BIN)/python tests/bench/run.py

reference: $(VENV_STAMP) ## write docs/reference anew from the code
	PYTHONPATH=tests/support $(BIN)/python -m reference

format: $(VENV_STAMP) ## apply the formatter and ruff's safe fixes
	$(BIN)/ruff format $(TESTED)
	$(BIN)/ruff check --fix $(TESTED)

# A fresh environment without pins gives the newest versions that pyproject.toml's ranges allow.
constraints: ## refresh constraints.txt
	@set -e; found=; $(FIND_PYTHON); rm -rf $(PARTS)/fresh; "$$found" -m venv $(PARTS)/fresh
	$(PARTS)/fresh/bin/pip install --quiet --disable-pip-version-check -e '.[dev]'
	@{ sed -n '/^#/p' constraints.txt; \
	   $(PARTS)/fresh/bin/pip freeze --exclude-editable | LC_ALL=C sort -f; } > constraints.txt.new
	@mv constraints.txt.new constraints.txt && rm -rf $(PARTS)/fresh

clean: ## remove what was made: environments, parts, caches
	rm -rf $(VENV) $(PARTS) build dist htmlcov .coverage .coverage.* .hypothesis .import_linter_cache
	rm -rf .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
