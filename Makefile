# hither: `make demo` shows it, `make test` tests it. Both install missing packages (Debian, Ubuntu;
# as root).
SHELL := /bin/bash
.DELETE_ON_ERROR:
CARGO ?= $(shell command -v cargo || echo $(HOME)/.cargo/bin/cargo)
PREFIX ?= /usr/local
LIBDIR ?= $(PREFIX)/lib
SBINDIR ?= /sbin
ZSHDIR ?= $(PREFIX)/share/zsh/site-functions
UNITDIR ?= $(PREFIX)/lib/systemd/system
MUSL := $(shell uname -m)-unknown-linux-musl
DESTDIR ?=
VERSION := $(shell sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml)
SOVERSION := $(firstword $(subst ., ,$(VERSION)))
FUZZ_SECONDS ?= 60
FUZZ_SERVE_SECONDS ?= 1800
SOAK_HOURS ?= 8
CRASHES ?= 1000
POINTS ?= 1000

.PHONY: demo test check unit quick instructions trend test-lab soak crashes crashes-write crashes-serve bench bench-meta bench-cache bench-report bench-serve fuzz fuzz-serve test-browser install uninstall build program library deb test-deb static test-static packages toolchain plain deny

# Needs only a compiler and FUSE.
demo: plain
	$(CARGO) build --release -p hither --no-default-features
	lab/demo.sh

test: packages check unit quick

# The checks of the compiler, the linter and the style.
check: toolchain
	$(CARGO) fmt --all --check
	$(CARGO) clippy --quiet --workspace --all-targets -- -D warnings
	$(CARGO) xtask tidy

# All tests of all crates, several programs side by side (xtask/src/test.rs). Those of crates/hither
# need root and nfs-ganesha.
unit: packages
	$(CARGO) xtask test --workspace

# The foreign suites and faults that are quick, on nfs-ganesha.
quick: packages build
	lab/quick.sh

# Everything, on nfs-ganesha and the Linux kernel's server, with every version.
test-lab: packages build
	lab/full.sh

# The dashboard in a real browser.
test-browser: packages build
	lab/packages.sh browser
	lab/browser.sh

# The instructions of hot paths, by valgrind. More than recorded is a failure.
instructions: packages toolchain
	$(CARGO) xtask instructions

# Records messages and instructions, and adds them to bench/TREND.md; for each landing.
trend: packages toolchain
	HITHER_RENEW=1 $(CARGO) test --workspace --test costs -- --include-ignored
	$(CARGO) xtask instructions --renew
	$(CARGO) xtask trend "$$(git log -1 --format='%cs %s')"

# All faults at POINTS random points, with a search for every acknowledged byte (HITHER_SEED and
# HITHER_WORLD repeat a failure), and the above, again and again, until one fails or the hours are over.
soak: packages build
	end=$$((SECONDS + $(SOAK_HOURS) * 3600)); \
	while [ $$SECONDS -lt $$end ]; do \
	  HITHER_POINTS=$(POINTS) $(CARGO) test -p hither --test campaign -- --ignored --nocapture || exit 1; \
	  HITHER_REPLACING=600 $(CARGO) test -p hither --test replacing -- --ignored --nocapture || exit 1; \
	  HITHER_SECONDS=60 $(CARGO) test -p hither --test replaced_lengths -- --ignored --nocapture || exit 1; \
	  HITHER_STEPS=500 $(CARGO) test -p hither --test absence -- --ignored --nocapture || exit 1; \
	  HITHER_CREATES=here HITHER_SEED=12 HITHER_POINTS=48 $(CARGO) test -p hither --test campaign -- --ignored --nocapture || exit 1; \
	  HITHER_DEAF=800 HITHER_OPENS=100000 $(CARGO) test -p hither --test others -- --ignored --nocapture || exit 1; \
	  lab/full.sh all || exit 1; done

# The disk cache under CRASHES kills of its daemon, with every byte compared.
crashes: packages toolchain
	HITHER_CRASHES=$(CRASHES) $(CARGO) test -p hither --test crashes -- --ignored --nocapture

# Mounts with a journal of delayed writes under CRASHES kills of their daemon, with every acknowledged record looked for.
crashes-write: packages toolchain
	HITHER_CRASHES=$(CRASHES) $(CARGO) test -p hither --test crashes_write -- --ignored --nocapture

# The server with a journal under CRASHES kills, power cuts between any two writes of the journal, and CRASHES of an ext4.
crashes-serve: packages toolchain
	HITHER_CRASHES=$(CRASHES) $(CARGO) test -p hither --test serve killed_server_with_journal -- --ignored --nocapture
	HITHER_CRASHES=$(CRASHES) $(CARGO) test -p hither-localfs --lib power_cut -- --include-ignored --nocapture

# Side by side with the kernel's client; writes the table to bench/.
bench: packages build
	lab/bench.sh

# The same for names, attributes and small files, with targets and pictures. META=quick takes a quarter of an hour.
bench-meta: packages build
	$(CARGO) build --release -p hither-fuse --example mount_model
	lab/bench.sh meta $(META)

# The hits of the disk cache's policies in caches of each size, played without a disk and checked with a
# real one; a few minutes.
bench-cache: packages build
	$(CARGO) build --release -p hither-cache --example sweep
	lab/bench.sh sweep

# The verdicts on the papers' claims: bench/RESULTS.md from the committed results.
bench-report: build
	target/release/hither bench report bench --markdown bench/RESULTS.md

# NFS servers side by side on an emulated hard disk and on this machine's: a quarter of an hour; writes a
# table and a picture to bench/.
bench-serve: packages build
	lab/bench.sh serve $(SERVE)

# A running server under calls of real clients, changed at random places, for half an hour.
fuzz-serve: packages toolchain
	HITHER_SECONDS=$(FUZZ_SERVE_SECONDS) $(CARGO) test -p hither --test fuzz_serve -- --ignored --nocapture

fuzz: toolchain
	fuzz/run-all $(FUZZ_SECONDS)

# Licences, sources and duplicates of dependencies.
deny: toolchain
	command -v cargo-deny >/dev/null || $(CARGO) install --locked cargo-deny
	$(CARGO) deny check bans licenses sources

# One after the other: together they would be built with other features than the installed program.
build: program
	$(CARGO) build --release -p hither-lab

program: toolchain
	$(CARGO) build --release -p hither

# libhither, for programs in C: shared and static.
library: toolchain
	$(CARGO) build --release -p hither-c

# Debian packages, in target/deb: the program, the library, its development files.
deb: toolchain
	lab/packages.sh deb
	packaging/deb/build

# Installs, uses, replaces, removes and purges them in a system of its own, which is made with debootstrap from this machine's mirror.
test-deb: deb
	packaging/deb/test

# One file that runs on any Linux, target/$(MUSL)/release/hither. Without Kerberos, which needs a library of the system.
static: plain
	lab/packages.sh static
	! command -v rustup >/dev/null || rustup target add $(MUSL)
	$(CARGO) build --release -p hither --no-default-features --target $(MUSL)

# The session of `make demo` with it, and a run without any other file.
test-static: static
	packaging/test-static target/$(MUSL)/release/hither

packages:
	@lab/packages.sh

toolchain:
	@lab/packages.sh toolchain

plain:
	@lab/packages.sh plain

install: program library
	install -Dm755 target/release/hither $(DESTDIR)$(PREFIX)/bin/hither
	install -d $(DESTDIR)$(SBINDIR)
	for l in mount.hither mount.fuse.hither umount.hither umount.fuse.hither; do \
	  ln -sf $(PREFIX)/bin/hither $(DESTDIR)$(SBINDIR)/$$l; done
	target/release/hither man $(DESTDIR)$(PREFIX)/share/man/man1
	install -d $(DESTDIR)$(PREFIX)/share/bash-completion/completions $(DESTDIR)$(ZSHDIR) \
	  $(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d
	target/release/hither completions bash > $(DESTDIR)$(PREFIX)/share/bash-completion/completions/hither
	target/release/hither completions zsh > $(DESTDIR)$(ZSHDIR)/_hither
	target/release/hither completions fish > $(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d/hither.fish
	install -d $(DESTDIR)$(UNITDIR)
	for unit in hither-serve hither-gateway; do \
	  sed 's|@BINDIR@|$(PREFIX)/bin|' packaging/systemd/$$unit.service.in > $(DESTDIR)$(UNITDIR)/$$unit.service; done
	install -Dm644 packaging/prometheus/hither.rules.yml $(DESTDIR)$(PREFIX)/share/hither/prometheus/hither.rules.yml
	install -Dm644 packaging/grafana/hither.json $(DESTDIR)$(PREFIX)/share/hither/grafana/hither.json
	install -Dm644 bindings/c/include/hither.h $(DESTDIR)$(PREFIX)/include/hither.h
	install -Dm644 target/release/libhither.so $(DESTDIR)$(LIBDIR)/libhither.so.$(VERSION)
	ln -sf libhither.so.$(VERSION) $(DESTDIR)$(LIBDIR)/libhither.so.$(SOVERSION)
	ln -sf libhither.so.$(SOVERSION) $(DESTDIR)$(LIBDIR)/libhither.so
	install -m644 target/release/libhither.a $(DESTDIR)$(LIBDIR)/libhither.a
	install -d $(DESTDIR)$(LIBDIR)/pkgconfig
	sed 's|@PREFIX@|$(PREFIX)|; s|@LIBDIR@|$(LIBDIR)|; s|@VERSION@|$(VERSION)|' bindings/c/hither.pc.in \
	  > $(DESTDIR)$(LIBDIR)/pkgconfig/hither.pc
	[ -n "$(DESTDIR)" ] || PATH=$$PATH:/usr/sbin:/sbin ldconfig

uninstall:
	rm -f $(DESTDIR)$(PREFIX)/include/hither.h $(DESTDIR)$(LIBDIR)/libhither.{a,so,so.$(SOVERSION),so.$(VERSION)} \
	  $(DESTDIR)$(LIBDIR)/pkgconfig/hither.pc
	[ -n "$(DESTDIR)" ] || PATH=$$PATH:/usr/sbin:/sbin ldconfig
	rm -f $(DESTDIR)$(PREFIX)/share/hither/{prometheus/hither.rules.yml,grafana/hither.json}
	rmdir $(DESTDIR)$(PREFIX)/share/hither/{prometheus,grafana,} 2>/dev/null || true
	rm -f $(DESTDIR)$(PREFIX)/share/man/man1/hither{,-*}.1 \
	  $(DESTDIR)$(PREFIX)/share/bash-completion/completions/hither $(DESTDIR)$(ZSHDIR)/_hither \
	  $(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d/hither.fish \
	  $(DESTDIR)$(UNITDIR)/hither-{serve,gateway}.service \
	  $(DESTDIR)$(PREFIX)/bin/hither $(DESTDIR)$(SBINDIR)/{,u}mount.{,fuse.}hither
