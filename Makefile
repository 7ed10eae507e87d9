# Everything a developer or CI runs. `make` alone lists the targets.
.DEFAULT_GOAL := help
.NOTPARALLEL:
SHELL := /bin/sh

VENV := .venv
BIN := $(VENV)/bin
PARTS := .parts
# A link leads to parts that other trees use, too. Nothing is removed through it, and that a fresh clone's files are newer
# than those parts is no reason to fetch them again.
$(shell test ! -L $(PARTS) || touch -c $(wildcard $(PARTS)/*/.stamp*) 2>/dev/null)
CLEAR = { test ! -L $(PARTS) || test ! -e $(@D) \
	|| { echo "$(@D) is out of date, but not removed through the link $(PARTS): remove it there, or the link" >&2; exit 1; }; } \
	&& rm -rf --one-file-system $(@D)
TOXIPROXY := v2.5.0
RUN_STAMP := $(VENV)/.stamp-run
VENV_STAMP := $(VENV)/.stamp
PARTS_STAMPS := $(PARTS)/rocketmq/.stamp $(PARTS)/rabbitmq/.stamp $(PARTS)/artemis/.stamp \
	$(PARTS)/rocketmq-proxy/.stamp $(PARTS)/grpc-clients/.stamp $(PARTS)/amqp10/.stamp $(PARTS)/node/.stamp \
	$(PARTS)/python/.stamp $(PARTS)/toxiproxy/.stamp-$(TOXIPROXY)
NATIVE_STAMP := $(VENV)/.stamp-native
FUZZ_STAMP := $(VENV)/.stamp-fuzz
NATIVE_SOURCES := $(wildcard native/*.toml native/*.pyi native/src/*.rs native/src/*/*.rs native/core/Cargo.toml native/core/src/*.rs native/core/src/*/*.rs)
# The compiled extension is optional: without a Rust toolchain all is done in Python.
CARGO := $(shell cargo --version 2>/dev/null | awk '{ split($$2, version, "."); if (version[2] >= 85) print "cargo" }')
NATIVE := $(if $(CARGO),$(NATIVE_STAMP),no-native)
WITHOUT_NATIVE := $(if $(CARGO),,--ignore=tests/unit/native)
# Nor is the load of the soak, which is a Rust program as well.
WITHOUT_LOAD := $(if $(CARGO),,--ignore=tests/integration/test_soak.py)
HELM := v3.18.4
OPERATOR := v0.83.0
AMQPLIB_SUITE := 2.2.0
AMQP_GO_SUITE := v1.16.0
GO_AMQP_SUITE := v1.7.0
DEPLOY_STAMPS := $(PARTS)/helm/.stamp-$(HELM) $(PARTS)/definitions/.stamp-$(OPERATOR) $(PARTS)/packaging/.stamp

# The first Python that is new enough and can make virtual environments; PYTHON=… chooses another.
FIND_PYTHON = for candidate in $(PYTHON) python3.11 python3.12 python3.13 python3; do \
	  if "$$candidate" -c 'import sys, ensurepip, venv; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; \
	  then found="$$candidate"; break; fi; done; \
	if [ -z "$$found" ]; then echo "no Python 3.11 or newer with venv here: apt-get install python3-venv" >&2; exit 1; fi

# An environment that was left half made has no pip, and is made again.
define MAKE_VENV
@PYTHON="$(PYTHON)" sh tests/integration/packages.sh python
@set -e; found=; $(FIND_PYTHON); $(BIN)/pip --version >/dev/null 2>&1 || "$$found" -m venv $(VENV)
endef

TESTED := proxy limiter admin native tests
JAVASCRIPT := $(PARTS)/javascript/node_modules
PAGES := admin/web/files admin/analytics/page

.PHONY: help setup packages native no-native rust parts fuzz-long fuzz-corpus demo demo-rocketmq demo-rocketmq5 demo-rabbitmq pictures test test-all lint types fast unit fuzz quick browser operator spark stores integration soak soak-long rabbitmq4 deploy chroot dist coverage bench reference constraints format clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: packages $(VENV_STAMP) $(NATIVE) ## check the system's packages and make .venv

packages:
	@PYTHON="$(PYTHON)" sh tests/integration/packages.sh python integration browser spark

# What Sluice itself runs on: a fraction of what development needs, so that the demo is there soon.
$(RUN_STAMP): pyproject.toml constraints.txt
	$(MAKE_VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e .
	@touch $@

# All that development needs, in the same place; whichever of the two comes first, the other adds what is missing.
$(VENV_STAMP): pyproject.toml constraints.txt tests/plugin/pyproject.toml
	$(MAKE_VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]' -e tests/plugin
	@touch $(RUN_STAMP) $@

native: $(NATIVE) ## build the compiled extension and install it in .venv, if cargo 1.85 is here

no-native:
	@echo "no cargo 1.85 or newer here: the compiled extension is neither built nor tested, Python does its work; Debian 13 has it in cargo, Debian 12 in cargo-web" >&2

$(NATIVE_STAMP): $(NATIVE_SOURCES) | $(VENV_STAMP)
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --force-reinstall ./native
	@touch $@

rust: $(if $(CARGO),,no-native) ## format, lints and tests of the compiled extension's own, if cargo 1.85 is here
ifneq ($(CARGO),)
	cd native && cargo fmt --all --check
	cd native && cargo clippy --quiet --workspace --all-targets -- -D warnings
	cd native && cargo test --quiet --workspace
	cd native/fuzz && cargo fmt --check && cargo clippy --quiet --all-targets -- -D warnings && cargo test --quiet
endif

stores: $(VENV_STAMP) $(PARTS)/s3a/.stamp ## fetch an S3 server and the client for it, for tests of reports

parts: setup $(PARTS_STAMPS) ## fetch the real brokers and clients of the integration tests

$(PARTS)/rocketmq/.stamp: tests/integration/rocketmq/pom.xml
	@sh tests/integration/packages.sh rocketmq
	@$(CLEAR) && mkdir -p $(@D)
	mvn -q -B -f $< dependency:copy-dependencies -DoutputDirectory="$(CURDIR)/$(@D)/lib"
	@touch $@

# Apart from the other broker, as the Proxy has much of its own.
$(PARTS)/rocketmq-proxy/.stamp: tests/integration/rocketmq_proxy/pom.xml
	@sh tests/integration/packages.sh rocketmq
	@$(CLEAR) && mkdir -p $(@D)
	mvn -q -B -f $< dependency:copy-dependencies -DoutputDirectory="$(CURDIR)/$(@D)/lib"
	@touch $@

# RocketMQ 5's clients, each in a place of its own.
$(PARTS)/grpc-clients/.stamp: tests/integration/clients/grpc/pom.xml tests/integration/clients/grpc/requirements.txt tests/integration/clients/grpc/package.json
	@sh tests/integration/packages.sh rocketmq
	@$(CLEAR) && mkdir -p $(@D)/node && cp $(filter %.json,$^) $(@D)/node
	mvn -q -B -f $< dependency:copy-dependencies -DoutputDirectory="$(CURDIR)/$(@D)/lib"
	cd $(@D)/node && npm install --silent --no-audit --no-fund --no-package-lock
	$(BIN)/python -m venv $(@D)/python
	$(@D)/python/bin/pip install --quiet --disable-pip-version-check -r $(filter %.txt,$^)
	@touch $@

$(PARTS)/rabbitmq/.stamp: tests/integration/rabbitmq/pom.xml
	@sh tests/integration/packages.sh rabbitmq
	@$(CLEAR) && mkdir -p $(@D)
	mvn -q -B -f $< dependency:copy-dependencies -DoutputDirectory="$(CURDIR)/$(@D)/lib"
	@touch $@

# The broker for AMQP 1.0 that is there in a second, without root.
$(PARTS)/artemis/.stamp: tests/integration/artemis/pom.xml
	@sh tests/integration/packages.sh rocketmq
	@$(CLEAR) && mkdir -p $(@D)
	mvn -q -B -f $< dependency:copy-dependencies -DoutputDirectory="$(CURDIR)/$(@D)/lib"
	@touch $@

# RabbitMQ's Java client for AMQP 1.0: apart from the broker, which needs an older Netty.
$(PARTS)/amqp10/.stamp: tests/integration/clients/amqp10/pom.xml
	@sh tests/integration/packages.sh rocketmq
	@$(CLEAR) && mkdir -p $(@D)
	mvn -q -B -f $< dependency:copy-dependencies -DoutputDirectory="$(CURDIR)/$(@D)/lib"
	@touch $@

# Debian 12 has RabbitMQ 3.10.8. What debootstrap mounts is gone with it, however it ends.
$(PARTS)/rabbitmq4/.stamp:
	@sh tests/integration/packages.sh rabbitmq4
	@$(CLEAR) && mkdir -p $(@D)
	unshare --mount debootstrap --variant=minbase --include=rabbitmq-server trixie $(@D)/root >$(@D)/log 2>&1 \
		|| { tail -5 $(@D)/log >&2; exit 1; }
	@touch $@

$(PARTS)/node/.stamp: tests/integration/clients/package.json
	@$(CLEAR) && mkdir -p $(@D) && cp $< $(@D)
	cd $(@D) && npm install --silent --no-audit --no-fund --no-package-lock
	@touch $@

# What formats and lints the page.
$(PARTS)/javascript/.stamp: tests/support/javascript/package.json tests/support/javascript/eslint.config.js
	@sh tests/integration/packages.sh javascript
	@$(CLEAR) && mkdir -p $(@D) && cp $^ $(@D)
	cd $(@D) && npm install --silent --no-audit --no-fund --no-package-lock
	@touch $@

$(PARTS)/python/.stamp: tests/integration/clients/requirements.txt
	@$(CLEAR)
	$(BIN)/python -m venv $(@D)
	$(@D)/bin/pip install --quiet --disable-pip-version-check -r $<
	@touch $@

# The tests of AMQP clients, as their makers publish them: amqplib's package has none from 2.3.0 on.
$(PARTS)/suites/.stamp: tests/integration/suites/requirements.txt Makefile | $(VENV_STAMP)
	@$(CLEAR) && mkdir -p $(@D)/aiormq $(@D)/amqplib
	$(BIN)/python -m venv $(@D)/python
	$(@D)/python/bin/pip install --quiet --disable-pip-version-check -r $<
	set -e; version=$$(sed -n 's/^aiormq==//p' $<); cd $(@D); \
	python/bin/pip download --quiet --disable-pip-version-check --no-deps --no-binary aiormq aiormq==$$version; \
	tar xzf aiormq-$$version.tar.gz --strip-components 1 -C aiormq; rm -r aiormq/aiormq
	cd $(@D) && npm pack --silent amqplib@$(AMQPLIB_SUITE) && tar xzf amqplib-*.tgz --strip-components 1 -C amqplib
	cd $(@D) && npm install --silent --no-audit --no-fund --no-package-lock --no-save --prefix . claire@0.4.1
	set -e; module=github.com/rabbitmq/amqp091-go@$(AMQP_GO_SUITE); cd $(@D); \
	cp -r "$$(go mod download -json $$module | sed -n 's/.*"Dir": "\(.*\)".*/\1/p')" amqp091-go; \
	chmod -R u+w amqp091-go; cd amqp091-go; go test -c -vet=off -tags integration -o suite.test .
	set -e; module=github.com/Azure/go-amqp@$(GO_AMQP_SUITE); cd $(@D); \
	cp -r "$$(go mod download -json $$module | sed -n 's/.*"Dir": "\(.*\)".*/\1/p')" go-amqp; \
	chmod -R u+w go-amqp; cd go-amqp; go test -c -vet=off -o suite.test .
	@touch $@

# The bad networks of the tests.
$(PARTS)/toxiproxy/.stamp-$(TOXIPROXY):
	@sh tests/integration/packages.sh toxiproxy
	@$(CLEAR) && mkdir -p $(@D)
	GOBIN="$(CURDIR)/$(@D)" GOFLAGS=-trimpath CGO_ENABLED=0 go install github.com/Shopify/toxiproxy/v2/cmd/server@$(TOXIPROXY)
	@touch $@

$(PARTS)/s3a/.stamp: tests/spark/stores/s3a/pom.xml tests/spark/stores/s3a/requirements.txt | $(VENV_STAMP)
	@sh tests/integration/packages.sh rocketmq
	@$(CLEAR) && mkdir -p $(@D)
	mvn -q -B -f $< dependency:copy-dependencies -DoutputDirectory="$(CURDIR)/$(@D)/lib"
	$(BIN)/python -m venv $(@D)/server
	$(@D)/server/bin/pip install --quiet --disable-pip-version-check -r tests/spark/stores/s3a/requirements.txt
	@touch $@

$(PARTS)/helm/.stamp-$(HELM):
	@sh tests/integration/packages.sh deploy
	@$(CLEAR) && mkdir -p $(@D)
	GOBIN="$(CURDIR)/$(@D)" GOFLAGS=-trimpath CGO_ENABLED=0 go install helm.sh/helm/v3/cmd/helm@$(HELM)
	@touch $@

# What ServiceMonitor and PrometheusRule are, which Kubernetes itself does not know.
$(PARTS)/definitions/.stamp-$(OPERATOR):
	@sh tests/integration/packages.sh deploy
	@$(CLEAR) && mkdir -p $(@D)
	@set -e; module=github.com/prometheus-operator/prometheus-operator@$(OPERATOR); \
	folder=$$(go mod download -json $$module | sed -n 's/.*"Dir": "\(.*\)".*/\1/p'); \
	for kind in servicemonitors prometheusrules; do \
	  install -m 0644 "$$folder/example/prometheus-operator-crd/monitoring.coreos.com_$$kind.yaml" $(@D)/$$kind.yaml; \
	done
	@touch $@

$(PARTS)/packaging/.stamp: deploy/container/tools.txt | $(VENV_STAMP)
	@$(CLEAR)
	$(BIN)/python -m venv $(@D)
	$(@D)/bin/pip install --quiet --disable-pip-version-check -r $<
	@touch $@

demo: $(RUN_STAMP) ## one runaway and several quiet topics, live, until Ctrl-C or SECONDS=20
	$(BIN)/sluice demo $(if $(SECONDS),--seconds $(SECONDS))

demo-rocketmq: $(RUN_STAMP) $(PARTS)/rocketmq/.stamp ## the same with a real RocketMQ and its own load generator, until Ctrl-C or SECONDS=30
	$(BIN)/python deploy/demo/demo.py rocketmq \
		--log $(PARTS)/demo-rocketmq/log $(if $(SECONDS),--seconds $(SECONDS)) $(if $(WITHOUT),--without)

demo-rocketmq5: $(RUN_STAMP) $(PARTS)/rocketmq-proxy/.stamp $(PARTS)/grpc-clients/.stamp ## the same with RocketMQ 5's Proxy and its own Java client
	$(BIN)/python deploy/demo/demo.py rocketmq5 \
		--log $(PARTS)/demo-rocketmq5/log $(if $(SECONDS),--seconds $(SECONDS)) $(if $(WITHOUT),--without)

demo-rabbitmq: $(RUN_STAMP) $(PARTS)/rabbitmq/.stamp ## the same with a real RabbitMQ and its own load generator
	$(BIN)/python deploy/demo/demo.py rabbitmq \
		--log $(PARTS)/demo-rabbitmq/log $(if $(SECONDS),--seconds $(SECONDS)) $(if $(WITHOUT),--without)

test: lint types rust fast quick ## what CI runs, in twelve minutes: lint, types, Rust, unit and fuzz tests, and the quick ones of each real part

# Of generated cases five times as many, drawn anew.
test-all: export FUZZ_FACTOR ?= 2
test-all: lint types rust fast rare deploy spark operator integration rabbitmq4 ## everything; an hour

lint: $(VENV_STAMP) $(PARTS)/javascript/.stamp ## ruff, formatting, the import contracts, the English of prose; Prettier and ESLint for the page
	$(BIN)/ruff check $(TESTED)
	$(BIN)/ruff format --check $(TESTED)
	$(BIN)/lint-imports
	$(BIN)/python tests/support/english.py
	$(JAVASCRIPT)/.bin/prettier --config $(PARTS)/javascript/package.json --log-level warn --check $(PAGES:=/*.js) $(PAGES:=/*.css)
	$(JAVASCRIPT)/.bin/eslint --config $(PARTS)/javascript/eslint.config.js $(PAGES:=/*.js)

types: $(VENV_STAMP) $(NATIVE) ## mypy --strict over the packages and the test harness
	$(BIN)/mypy --strict
	$(if $(CARGO),$(BIN)/stubtest --ignore-missing-stub sluice_native)
	MYPYPATH=tests/support $(BIN)/mypy --strict tests/integration/harness
	$(BIN)/mypy --strict tests/support/playbook tests/support/amqp_playbook tests/support/amqp10_playbook
	$(BIN)/mypy --strict tests/plugin/sluice_lines
	MYPYPATH=tests/support:tests/integration $(BIN)/mypy --strict tests/fuzz/guided.py tests/support/fuzz_targets
	MYPYPATH=tests/support:tests/integration $(BIN)/mypy --strict tests/support/pictures
	MYPYPATH=tests/support:tests/integration $(BIN)/mypy --strict tests/bench tests/support/reference \
		tests/support/claims.py tests/support/page_commands.py tests/support/guides.py tests/support/credit_processes.py

fast: $(VENV_STAMP) $(NATIVE) ## unit and fuzz tests
	$(BIN)/python -m pytest tests/unit tests/fuzz $(WITHOUT_NATIVE) -m "not long" -n auto --maxprocesses 4 --dist worksteal

rare: $(VENV_STAMP) $(NATIVE) ## unit and fuzz tests that prove a rare case, by trying very many
	$(BIN)/python -m pytest tests/unit tests/fuzz $(WITHOUT_NATIVE) -m long -n auto --maxprocesses 4 --dist worksteal

unit: $(VENV_STAMP) $(NATIVE) ## unit tests alone
	$(BIN)/python -m pytest tests/unit $(WITHOUT_NATIVE)

fuzz: $(VENV_STAMP) ## fuzz tests alone; FUZZ_FACTOR=20 makes 20 times the cases
	$(BIN)/python -m pytest tests/fuzz

$(FUZZ_STAMP): $(VENV_STAMP)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[fuzz]'
	@touch $@

# FUZZ_SECONDS=60 is for a first look; FUZZ_TARGETS="rocketmq edits" runs these two.
FUZZ_SECONDS := 600
fuzz-long: $(FUZZ_STAMP) $(NATIVE) ## coverage-guided fuzzing with libFuzzer (Atheris; the Rust core likewise); FUZZ_SECONDS for each of FUZZ_TARGETS
	$(BIN)/python tests/fuzz/guided.py $(FUZZ_TARGETS) --seconds $(FUZZ_SECONDS)

fuzz-corpus: $(FUZZ_STAMP) $(NATIVE) ## make tests/fuzz/corpus anew from what fuzz-long has learnt
	$(BIN)/python tests/fuzz/guided.py $(FUZZ_TARGETS) --minimise

# Of each real part (Spark, Chromium, a sluice process, a broker with its clients) the tests that are not marked as long. Most
# of them wait for brokers and clients: three at a time keep two cores busy.
quick: parts ## the quick tests with Spark, a browser, real brokers and real clients
	@sh tests/integration/packages.sh spark
	$(BIN)/python -m pytest tests/spark tests/browser tests/integration -m "not long and not alone and not rabbitmq4" -n 3 --dist loadfile --no-loadscope-reorder
	$(BIN)/python -m pytest tests/integration -m "alone and not long and not rabbitmq4"

browser: setup ## the page in a real Chromium
	$(BIN)/python -m pytest tests/browser

# None of these measures a rate, so they may share the machine. Each worker has brokers and sidecars of its own.
operator: parts ## API, page, rules, edits and attacks against a real sluice, two at a time
	$(BIN)/python -m pytest tests/integration tests/browser $(WITHOUT_LOAD) -m "not alone and not rabbitmq4 and not soak" -n 2 --dist loadfile

# Each of the two has a Spark of its own, whose planner is one thread. Files with few tests are not the quick ones here.
spark: stores ## the analysis of the rejection log in a real Spark, two tests at a time
	@sh tests/integration/packages.sh spark
	$(BIN)/python -m pytest tests/spark -n 2 --dist loadfile --no-loadscope-reorder

integration: parts $(PARTS)/suites/.stamp ## real clients and real brokers through sluice
	$(BIN)/python -m pytest tests/integration -m "alone and not rabbitmq4 and not soak"

soak-long: $(VENV_STAMP) $(NATIVE) ## 100 million frames, a million connections, ten million names: memory, descriptors, counters; SOAK='--scale 0.1' for less
	$(BIN)/python tests/bench/soak.py $(SOAK)

soak: parts ## brokers, clients and Sluice killed 200 times each; an hour
	$(BIN)/python -m pytest tests/integration/test_confirm_after_consume_kills.py

rabbitmq4: parts $(PARTS)/rabbitmq4/.stamp $(PARTS)/suites/.stamp ## AMQP 1.0, and the quick tests of 0.9.1, with Debian 13's RabbitMQ 4; needs root
	@sh tests/integration/packages.sh rabbitmq4
	TESTED_RABBITMQ_ROOT=$(PARTS)/rabbitmq4/root $(BIN)/python -m pytest tests/integration/test_amqp_*.py tests/integration/test_confirm_*.py -m "not long"
	$(BIN)/python -m pytest tests/integration -m "rabbitmq4 and not long"

deploy: $(VENV_STAMP) $(DEPLOY_STAMPS) ## packages, unit, chart, rules and dashboard, each by its own validator
	@sh tests/integration/packages.sh deploy
	$(BIN)/python -m pytest tests/deploy

chroot: ## image, wheel and unit in a bare Debian (debootstrap, buildah, systemd-nspawn); needs root and ten minutes
	@sh tests/integration/packages.sh chroot
	sh deploy/container/chroot.sh $(PARTS)/chroot
	sh deploy/container/image.sh $(PARTS)/chroot
	sh deploy/systemd/nspawn.sh $(PARTS)/chroot

dist: $(PARTS)/packaging/.stamp ## wheels, source distribution and bill of materials, in dist
	rm -rf dist $(PARTS)/packaging/run
	PIP_CONSTRAINT=constraints.txt PIP_BUILD_CONSTRAINT=constraints.txt $(PARTS)/packaging/bin/python -m build --quiet
	$(BIN)/python -m venv --without-pip $(PARTS)/packaging/run
	$(PARTS)/packaging/bin/pip --python $(PARTS)/packaging/run/bin/python install --quiet --disable-pip-version-check \
		-c constraints.txt dist/*.whl
	$(if $(CARGO),$(PARTS)/packaging/bin/pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir dist ./native)
	$(PARTS)/packaging/bin/cyclonedx-py environment --pyproject pyproject.toml --mc-type application \
		--output-reproducible --validate --output-file "dist/$$(basename dist/*.tar.gz .tar.gz).cdx.json" \
		$(PARTS)/packaging/run/bin/python
	rm -rf $(PARTS)/packaging/run

# With COVERED_SIDECARS=1 the sluice processes of the integration tests leave coverage files of their own.
coverage: $(VENV_STAMP) $(NATIVE) ## what the unit and fuzz tests cover; half as long again as without
	$(BIN)/python -m pytest tests/unit tests/fuzz $(WITHOUT_NATIVE) --cov --cov-report= -n auto --maxprocesses 4
	@ls .coverage.* >/dev/null 2>&1 || exit 0; $(BIN)/coverage combine --append --quiet
	$(BIN)/coverage report

bench: $(VENV_STAMP) $(NATIVE) ## Sluice next to HAProxy, nginx, a bare relay and Guava, against its goals; half an hour on a quiet machine
	@sh tests/integration/packages.sh bench
	$(BIN)/python -m pytest --quiet tests/bench
	$(BIN)/python tests/bench/run.py

reference: $(VENV_STAMP) ## write docs/reference anew from the code
	PYTHONPATH=tests/support $(BIN)/python -m reference

pictures: parts ## make the pictures of the README anew, from a real run; five minutes
	@sh tests/integration/packages.sh browser spark
	PYTHONPATH=tests/support:tests/integration $(BIN)/python -m pictures

format: $(VENV_STAMP) $(PARTS)/javascript/.stamp ## apply the formatters and ruff's safe fixes
	$(BIN)/ruff format $(TESTED)
	$(BIN)/ruff check --fix $(TESTED)
	$(JAVASCRIPT)/.bin/prettier --config $(PARTS)/javascript/package.json --log-level warn --write $(PAGES:=/*.js) $(PAGES:=/*.css)

# A fresh environment without pins gives the newest versions that pyproject.toml's ranges allow.
constraints: ## refresh constraints.txt
	@set -e; found=; $(FIND_PYTHON); rm -rf $(PARTS)/fresh; "$$found" -m venv $(PARTS)/fresh
	$(PARTS)/fresh/bin/pip install --quiet --disable-pip-version-check -e '.[dev,fuzz]'
	@{ sed -n '/^#/p' constraints.txt; \
	   $(PARTS)/fresh/bin/pip freeze --exclude-editable | LC_ALL=C sort -f; } > constraints.txt.new
	@mv constraints.txt.new constraints.txt && rm -rf $(PARTS)/fresh

clean: ## remove what was made: environments, parts, caches
	rm -rf $(VENV) $(PARTS) .fuzz build dist htmlcov native/target native/fuzz/target .coverage .coverage.* .hypothesis .import_linter_cache
	rm -rf .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
