# hither: `make demo` shows it, `make test` tests it. Both install what they lack (Debian, Ubuntu; as root).
SHELL := /bin/bash
.DELETE_ON_ERROR:
CARGO ?= $(shell command -v cargo || echo $(HOME)/.cargo/bin/cargo)
PREFIX ?= /usr/local
DESTDIR ?=
FUZZ_SECONDS ?= 60
SOAK_HOURS ?= 8
CRASHES ?= 1000

.PHONY: demo test check unit quick test-lab soak crashes crashes-serve bench bench-meta bench-serve fuzz install uninstall build packages toolchain deny

# Needs nothing but a compiler and FUSE.
demo: toolchain
	$(CARGO) build --release -p hither
	lab/demo.sh

test: packages check unit quick

# What a compiler and a reader would say.
check: toolchain
	$(CARGO) fmt --all --check
	$(CARGO) clippy --quiet --workspace --all-targets -- -D warnings
	$(CARGO) xtask tidy

# The mounts of crates/hither's tests need root and nfs-ganesha, so a plain `cargo test` leaves them out.
unit: packages
	$(CARGO) test --workspace --exclude hither
	$(CARGO) test -p hither -- --include-ignored

# The foreign suites and faults that are quick, on nfs-ganesha.
quick: packages build
	lab/quick.sh

# Everything, on nfs-ganesha and the Linux kernel's server, with every version.
test-lab: packages build
	lab/full.sh

# The same again and again, until one fails or the hours are over.
soak: packages build
	end=$$((SECONDS + $(SOAK_HOURS) * 3600)); \
	while [ $$SECONDS -lt $$end ]; do lab/full.sh all || exit 1; done

# The disk cache under CRASHES kills of its daemon, with every byte compared.
crashes: packages toolchain
	HITHER_CRASHES=$(CRASHES) $(CARGO) test -p hither --test crashes -- --ignored --nocapture

# The server with a journal under CRASHES kills, and power cuts between any two writes of the journal.
crashes-serve: packages toolchain
	HITHER_CRASHES=$(CRASHES) $(CARGO) test -p hither --test serve journal_loses -- --ignored --nocapture
	$(CARGO) test -p hither-store --lib power_cut -- --include-ignored

# Side by side with the kernel's client; the table goes to bench/.
bench: packages build
	lab/bench.sh

# The same for names, attributes and small files, with targets and pictures. META=quick takes a quarter of an hour.
bench-meta: packages build
	$(CARGO) build --release -p hither-fuse --example mount_model
	lab/bench.sh meta $(META)

# NFSv3 servers side by side: nfs-ganesha, hither serve, and with a journal; JSON lines.
bench-serve: packages build
	lab/bench-serve.sh sync --kinds write,commit,create,remove
	lab/bench-serve.sh nhfsstone

fuzz: toolchain
	fuzz/run-all $(FUZZ_SECONDS)

# Licences, sources and duplicates of what we depend on.
deny: toolchain
	command -v cargo-deny >/dev/null || $(CARGO) install --locked cargo-deny
	$(CARGO) deny check bans licenses sources

build: toolchain
	$(CARGO) build --release -p hither -p hither-lab

packages:
	@lab/packages.sh

toolchain:
	@lab/packages.sh toolchain

install: build
	install -Dm755 target/release/hither $(DESTDIR)$(PREFIX)/bin/hither
	install -d $(DESTDIR)/sbin
	for l in mount.hither mount.fuse.hither umount.hither umount.fuse.hither; do \
	  ln -sf $(PREFIX)/bin/hither $(DESTDIR)/sbin/$$l; done
	target/release/hither man $(DESTDIR)$(PREFIX)/share/man/man1
	install -d $(DESTDIR)$(PREFIX)/share/bash-completion/completions $(DESTDIR)$(PREFIX)/share/zsh/site-functions \
	  $(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d
	target/release/hither completions bash > $(DESTDIR)$(PREFIX)/share/bash-completion/completions/hither
	target/release/hither completions zsh > $(DESTDIR)$(PREFIX)/share/zsh/site-functions/_hither
	target/release/hither completions fish > $(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d/hither.fish

uninstall:
	rm -f $(DESTDIR)$(PREFIX)/share/man/man1/hither{,-*}.1 \
	  $(DESTDIR)$(PREFIX)/share/bash-completion/completions/hither $(DESTDIR)$(PREFIX)/share/zsh/site-functions/_hither \
	  $(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d/hither.fish \
	  $(DESTDIR)$(PREFIX)/bin/hither $(DESTDIR)/sbin/{,u}mount.{,fuse.}hither
