SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

# Where cargo builds, and where `install` puts things.
TARGET := $(or $(CARGO_TARGET_DIR),target)
KOMAINU := $(TARGET)/release/komainu
# Counts of what requests run, by which release builds are laid out (scripts/profile). They fit one version of the compiler; others build without.
COUNTS = $(wildcard profile/rustc-$(word 2,$(shell rustc -V)).profdata)
# They name functions as this command compiles them: other packages or features beside it, or no named target, give other names.
HOST = $(shell rustc -vV | sed -n 's/^host: //p')
CARGO_BUILD = cargo build --release --locked --package komainu --target $(HOST)
PREFIX ?= /usr/local
DESTDIR ?=
# `no` installs the program with its debug information inside: debhelper takes it out itself.
SPLIT_DEBUG ?=
# Where `install` puts debug information, below PREFIX.
DEBUG_FILES = ./bin/.debug ./lib/debug
# Seconds for each fuzz target.
FUZZ_S ?= 60
# `make bench`: rows whose names contain these; peers' programs, NAME=PATH; rounds; anything in SHORT, SAVE or RESUME is yes.
ROWS ?=
PEERS ?=
ROUNDS ?= 5
# Whole experiments instead of the table, and options for them: make bench LABS='files idle' BENCH='--set repetitions=5 --only nginx'
LABS ?=
BENCH ?=

.PHONY: help build profile run test check bench instrument conformance chart site fuzz audit install deb wheel gem cpan container tarball packages release clean

help: ## this list
	@echo 'Komainu. The usual ways in:'
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo
	@echo 'What is missing on a Debian machine is installed first; a Rust toolchain (https://rustup.rs) must be there.'

build: ## the release build of everything; the binary is target/release/komainu
	@scripts/setup build
	$(if $(COUNTS),RUSTFLAGS='$(RUSTFLAGS) -Cprofile-use=$(abspath $(COUNTS)) -Cllvm-args=-no-pgo-warn-mismatch') $(CARGO_BUILD)
	@mkdir -p $(TARGET)/release && ln -f $(TARGET)/$(HOST)/release/komainu $(KOMAINU)
	@scripts/workers $(TARGET)/release/workers

profile: ## count again what requests run, for the layout of release builds: a build, and rustup for the tools of its LLVM
	@scripts/setup build
	CARGO_BUILD='$(CARGO_BUILD)' scripts/profile

run: build ## build, then serve the demo site on http://127.0.0.1:8080
	@echo
	@exec scripts/demo $(KOMAINU)

test: ## everything that is checked: format, lints, house rules, tests (fuzzers: make fuzz)
	@TIMEFORMAT='setup: %0R s'; time scripts/setup test
	cargo fmt --all --check
	@TIMEFORMAT='lints: %0R s'; time cargo clippy --locked --workspace --all-targets -- -D warnings
	@TIMEFORMAT='audit: %0R s'; time scripts/audit
	@TIMEFORMAT='building tests: %0R s'; time { cargo build --locked --workspace --all-targets && scripts/workers $(TARGET)/tmp/workers; }
	@# Not by `cargo xtask`, which builds everything that it needs once more, with the features that it alone asks for.
	@TIMEFORMAT='house rules: %0R s'; time $(TARGET)/debug/xtask tidy
	@TIMEFORMAT='tests: %0R s'; time scripts/tests

check: ## the quick part of `test`: format, lints, house rules
	@scripts/setup build
	cargo fmt --all --check
	cargo clippy --locked --workspace --all-targets -- -D warnings
	cargo xtask tidy

bench: build ## Komainu beside its peers, in one table: 50 minutes (ROWS='http2 tls' SHORT=yes SAVE=yes RESUME=yes PEERS='nginx=PATH')
	@scripts/setup bench
ifeq ($(LABS),)
	@$(KOMAINU) lab table --out bench-results $(if $(RESUME),,--fresh) $(if $(SHORT),--short,--set repetitions=$(ROUNDS)) $(if $(SAVE),--save) \
		$(if $(ROWS),--rows '$(ROWS)') $(addprefix --peer ,$(PEERS)) $(BENCH) figures/rows.toml
	@$(if $(SAVE),cargo xtask docs)
else
	for lab in $(LABS); do $(KOMAINU) lab run --fresh --out bench-results $(addprefix --peer ,$(PEERS)) labs/$$lab.toml $(BENCH); done
endif

instrument: build ## the load generator beside wrk, h2load and servers of known behaviour
	@scripts/setup bench
	cargo xtask bench generator
	$(KOMAINU) bench calibrate
	cargo xtask bench instrument --rows readings,slower --rounds 3

conformance: build ## the conformance suite of Gateway API, as root, on a Kubernetes without containers (needs Go; docs/conformance)
	scripts/conformance $(KOMAINU) --report docs/conformance

chart: ## the Helm chart: linted, compared with packages/helm/default.yaml, tried at a running scripts/cluster, packed (needs Go or helm)
	scripts/chart lint
	scripts/chart check
	@mkdir -p $(TARGET)/packages
	scripts/chart package $(TARGET)/packages

site: ## the documents as a book, in target/site
	@scripts/setup site
	@scripts/site $(TARGET)/site

fuzz: ## every fuzz target for a minute (FUZZ_S=...)
	@scripts/setup fuzz
	@scripts/fuzz $(FUZZ_S)

audit: ## licences, advisories and sources of the dependencies
	@scripts/audit

install: ## the binary, its debug information, manual and completions (PREFIX=/usr/local, DESTDIR=, SPLIT_DEBUG=no); after `make build`
	@test -x $(KOMAINU) || { echo 'nothing to install yet: make build'; exit 1; }
	$(if $(filter no,$(SPLIT_DEBUG)),install -D -m 755 $(KOMAINU) $(DESTDIR)$(PREFIX)/bin/komainu,scripts/install-program $(KOMAINU) '$(DESTDIR)' '$(PREFIX)')
	install -d $(DESTDIR)$(PREFIX)/lib/komainu
	cp -R $(TARGET)/release/workers/. $(DESTDIR)$(PREFIX)/lib/komainu/
	install -D -m 644 -t $(DESTDIR)$(PREFIX)/include workers/include/*.h
	install -d $(addprefix $(DESTDIR)$(PREFIX)/share/,man/man1 bash-completion/completions zsh/site-functions fish/vendor_completions.d)
	$(KOMAINU) man > $(DESTDIR)$(PREFIX)/share/man/man1/komainu.1
	$(KOMAINU) completions bash > $(DESTDIR)$(PREFIX)/share/bash-completion/completions/komainu
	$(KOMAINU) completions zsh > $(DESTDIR)$(PREFIX)/share/zsh/site-functions/_komainu
	$(KOMAINU) completions fish > $(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d/komainu.fish

deb: build ## Debian packages in target/packages: the server, and workers for Perl, PHP, Python and Ruby
	@scripts/setup package
	fakeroot debian/rules binary KOMAINU_DEBS=$(abspath $(TARGET))/packages
	@ls -l $(TARGET)/packages/*.deb

wheel: build ## a Python wheel with the server inside, in target/packages
	@scripts/setup package
	scripts/wheel $(TARGET)/release $(TARGET)/packages

gem: build ## a Ruby gem with the server inside, in target/packages
	@scripts/setup package
	scripts/gem $(TARGET)/release $(TARGET)/packages

cpan: ## the CPAN distribution of Plack::Handler::Komainu, in target/packages
	@mkdir -p $(TARGET)/packages $(TARGET)/cpan
	rm -rf $(TARGET)/cpan/* && cp -R packages/cpan/. $(TARGET)/cpan/
	cd $(TARGET)/cpan && perl Makefile.PL >/dev/null && $(MAKE) --no-print-directory dist >/dev/null
	mv $(TARGET)/cpan/*.tar.gz $(TARGET)/packages/ && ls -l $(TARGET)/packages/Plack-Handler-*.tar.gz

container: build ## a container image, in target/packages
	@scripts/setup package
	scripts/container $(TARGET)/release $(TARGET)/packages

tarball: build ## the server and its workers as an archive to unpack under /usr/local, and another of its debug information, in target/packages
	rm -rf $(TARGET)/tarball && $(MAKE) --no-print-directory install DESTDIR=$(abspath $(TARGET))/tarball PREFIX=
	@mkdir -p $(TARGET)/packages
	tar -C $(TARGET)/tarball $(DEBUG_FILES:%=--exclude=%) -cJf $(TARGET)/packages/komainu-$(shell uname -m).tar.xz .
	XZ_OPT=-T0 tar -C $(TARGET)/tarball -cJf $(TARGET)/packages/komainu-$(shell uname -m)-debug.tar.xz $(DEBUG_FILES)
	@ls -l $(TARGET)/packages/*.tar.xz

packages: ## all of these, each installed into an empty environment and tried
	$(MAKE) --no-print-directory deb wheel gem cpan container tarball
	scripts/try-packages $(TARGET)/packages
	scripts/try-wheel $(TARGET)/packages/*.whl
	scripts/try-gem $(TARGET)/packages/*.gem
	scripts/try-cpan $(TARGET)/packages/Plack-Handler-*.tar.gz $(KOMAINU)
	scripts/try-container $(TARGET)/packages/komainu.oci.tar

release: ## a release: checks, version, changelog, packages, commit and tag (VERSION=x.y.z, DRY_RUN=1, SKIP_TESTS=1)
	@SKIP_TESTS='$(SKIP_TESTS)' scripts/release '$(VERSION)' $(if $(DRY_RUN),--dry-run)

clean: ## remove what was built and measured
	cargo clean
	rm -rf bench-results fuzz/target
