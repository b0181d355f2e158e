#!/bin/bash
# Installs missing packages: packages.sh [toolchain|plain|browser|deb|static|newer]. Debian and Ubuntu, as root.
# With `plain`, hither is compiled without Kerberos.
# Prints nothing when no package is missing.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
install_packages() {
  [ "$(id -u)" = 0 ] || { echo "packages are missing ($*): run as root" >&2; exit 1; }
  echo "installing: $*"
  # The tests start servers in private namespaces, so the packages must not start any.
  local policy=/usr/sbin/policy-rc.d made=
  [ -e $policy ] || { printf '#!/bin/sh\nexit 101\n' > $policy; chmod +x $policy; made=1; }
  trap '[ -z "$made" ] || rm -f $policy' EXIT
  apt-get update -qq
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >/dev/null
  [ -z "$made" ] || rm -f $policy
  trap - EXIT
}
lacking() {
  local p
  for p in "$@"; do
    dpkg-query -W -f '${Status}' "$p" 2>/dev/null | grep -q '^install ok installed' || echo "$p"
  done
}
# The releases of the laboratory's peers that follow those of this machine: a Debian 13 in a
# directory of its own. The programs of the suites are in it too, because guests with the newer kernel
# have it as their root.
newer_suite=trixie
newer_packages=(acl attr build-essential cachefilesd ca-certificates e2fsprogs git iproute2 kmod
  krb5-admin-server krb5-kdc krb5-user ktls-utils nfs-common nfs-ganesha nfs-ganesha-vfs
  nfs-kernel-server nfs4-acl-tools postgresql procps psmisc python3 rpcbind rsync sqlite3
  user-mode-linux)
# Longest time in seconds for the download and the installation.
newer_limit=1200
newer_root() {
  local root=${HITHER_LAB_NEWER:-${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/hither-lab/$newer_suite}
  [ "$(cat "$root/complete" 2>/dev/null)" != "${newer_packages[*]}" ] || return 0
  [ "$(id -u)" = 0 ] || { echo "the newer peers are missing: run as root" >&2; return 1; }
  local missing mirror part=$root.part
  mapfile -t missing < <(lacking debootstrap debian-archive-keyring)
  [ ${#missing[@]} = 0 ] || install_packages "${missing[@]}"
  # This machine's mirror, if it has Debian.
  mirror=${HITHER_LAB_MIRROR:-$(. /etc/os-release && [ "$ID" = debian ] \
    && apt-get indextargets --format '$(REPO_URI) $(RELEASE) $(COMPONENT)' 'Created-By: Packages' \
    | awk -v suite="$VERSION_CODENAME" '$2 == suite && $3 == "main" { print $1; exit }')}
  mirror=${mirror:-http://deb.debian.org/debian}
  mkdir -p "$(dirname "$root")"
  exec 8>"$root.lock"; flock 8
  [ "$(cat "$root/complete" 2>/dev/null)" != "${newer_packages[*]}" ] || return 0
  echo "getting the newer peers from $mirror"
  rm -rf --one-file-system "$part"
  if ! PART=$part PACKAGES=${newer_packages[*]} timeout $newer_limit unshare --mount --propagation private \
    bash -euc '
      debootstrap --variant=minbase --keyring=/usr/share/keyrings/debian-archive-keyring.gpg "$1" "$PART" "$2"
      printf "#!/bin/sh\nexit 101\n" > "$PART/usr/sbin/policy-rc.d"; chmod +x "$PART/usr/sbin/policy-rc.d"
      mount --rbind /dev "$PART/dev"; mount -t proc proc "$PART/proc"; mount -t tmpfs tmpfs "$PART/run"
      export DEBIAN_FRONTEND=noninteractive LC_ALL=C PATH=/usr/sbin:/usr/bin:/sbin:/bin
      chroot "$PART" apt-get install -y -qq --no-install-recommends $PACKAGES
      chroot "$PART" apt-get clean
      [ -e "$PART/etc/mtab" ] || ln -s ../proc/self/mounts "$PART/etc/mtab"
      # The kernel of a guest loads further modules from here.
      ln -s uml/modules "$PART/usr/lib/modules"' _ "$newer_suite" "$mirror" > "$root.log" 2>&1; then
    echo "no newer peers from $mirror: $(grep -v '^$' "$root.log" | tail -n 1); see $root.log" >&2
    rm -rf --one-file-system "$part"
    return 1
  fi
  echo "${newer_packages[*]}" > "$part/complete"
  rm -rf --one-file-system "$root"
  mv "$part" "$root"
}
case "${1:-}" in
  newer)
    newer_root
    exit ;;
  browser)
    for browser in chromium-headless-shell chromium google-chrome chrome; do
      ! command -v $browser >/dev/null || exit 0
    done
    # Ubuntu's chromium is a snap, which this script does not install. lab/browser.sh names the
    # missing program.
    ! apt-cache show chromium-headless-shell >/dev/null 2>&1 || install_packages chromium-headless-shell
    exit ;;
  static)
    mapfile -t missing < <(lacking musl-tools)
    [ ${#missing[@]} = 0 ] || install_packages "${missing[@]}"
    exit ;;
  deb)
    mapfile -t missing < <(lacking debootstrap dpkg-dev)
    [ ${#missing[@]} = 0 ] || install_packages "${missing[@]}"
    exit ;;
esac
if [ "${1:-}" != plain ]; then
  # For Kerberos: the library, and the parser of its headers.
  mapfile -t missing < <(lacking libclang-dev libkrb5-dev)
  [ ${#missing[@]} = 0 ] || install_packages "${missing[@]}"
fi
if [ -z "${1:-}" ]; then
  mapfile -t wanted < <(grep -v '^ *\(#\|$\)' "$here/packages.txt")
  mapfile -t missing < <(lacking "${wanted[@]}")
  [ ${#missing[@]} = 0 ] || install_packages "${missing[@]}"
  # nfs-ganesha exports nothing without /etc/mtab, and minimal systems lack the file.
  [ -e /etc/mtab ] || ln -s ../proc/self/mounts /etc/mtab
  [ -e /dev/fuse ] || modprobe fuse || { echo "this kernel has no FUSE (/dev/fuse)" >&2; exit 1; }
fi
if ! command -v cargo >/dev/null && [ ! -x "$HOME/.cargo/bin/cargo" ]; then
  mapfile -t missing < <(lacking build-essential curl ca-certificates)
  [ ${#missing[@]} = 0 ] || install_packages "${missing[@]}"
  if apt-cache show rustup >/dev/null 2>&1; then
    install_packages rustup
  else
    echo "installing Rust (rustup)"
    curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs | sh -s -- -y -q --profile minimal --default-toolchain none
  fi
fi
