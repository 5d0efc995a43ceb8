#!/bin/sh
# Installs missing Debian packages that the build needs; does nothing if all are installed.
# Usage: scripts/install.sh PACKAGE...
set -eu

missing=
for package in "$@"; do
  status=$(dpkg-query -W -f '${Status}' "$package" 2>/dev/null || true)
  [ "$status" = "install ok installed" ] || missing="$missing $package"
done
[ -n "$missing" ] || exit 0

if ! command -v apt-get >/dev/null; then
  echo "Install these first (names as in Debian 12):$missing" >&2
  exit 1
fi
sudo=
if [ "$(id -u)" != 0 ]; then
  if ! command -v sudo >/dev/null; then
    echo "Not root and no sudo. Ask an administrator for: apt-get install$missing" >&2
    exit 1
  fi
  sudo=sudo
fi
# Asks for the password, if one is needed, before the output goes to the log.
[ -z "$sudo" ] || sudo -n true 2>/dev/null || sudo -v
step() { "$(dirname "$0")/step.sh" "${LOG:-build/make.log}" "$@"; }
step "Updating the list of packages" $sudo apt-get update -qq
# shellcheck disable=SC2086  # a list of words
step "Installing$missing" $sudo env DEBIAN_FRONTEND=noninteractive \
  apt-get install -y -qq --no-install-recommends $missing
