#!/bin/bash
# Installs missing packages: packages.sh [toolchain|browser|deb]. Debian and Ubuntu, as root. Prints
# nothing when no package is missing.
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
case "${1:-}" in
  browser)
    for browser in chromium-headless-shell chromium google-chrome chrome; do
      ! command -v $browser >/dev/null || exit 0
    done
    # Ubuntu's chromium is a snap, which this script does not install. lab/browser.sh names the
    # missing program.
    ! apt-cache show chromium-headless-shell >/dev/null 2>&1 || install_packages chromium-headless-shell
    exit ;;
  deb)
    mapfile -t missing < <(lacking debootstrap dpkg-dev)
    [ ${#missing[@]} = 0 ] || install_packages "${missing[@]}"
    exit ;;
esac
if [ "${1:-}" != toolchain ]; then
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
