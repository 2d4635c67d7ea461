#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Makes a bare Debian 12 (debootstrap's minbase and the packages that the install page names), clones this commit into it and runs scripts there.
#   scripts/fresh_root.sh FOLDER [build|demo|test]...     default: demo test
# Needs root and debootstrap. FOLDER is made anew each time; FOLDER/NAME.log is what a script printed. Nothing of this host but its name
# service, certificates, package sources and pip's settings can be seen from inside.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
folder=${1:?usage: scripts/fresh_root.sh FOLDER [build|demo|test]...}
shift
(($#)) || set -- demo test
die() { echo "fresh_root: $*" >&2; exit 1; }
[[ $(id -u) == 0 ]] || die "needs root"
command -v debootstrap >/dev/null || die "needs debootstrap:  apt-get install debootstrap"
mkdir -p "$folder"
folder=$(cd "$folder" && pwd) root=$folder/root
rm -rf --one-file-system "$root"
first=$(sed -n 's/^On a bare system install \(.*\) first\..*/\1/p' docs/get-started/install.md | grep -o '`[^`]*`' | tr -d '`' | paste -sd,)
[[ -n $first ]] || die "docs/get-started/install.md does not say what a bare system needs first"
debootstrap --variant=minbase --include="$first" bookworm "$root" >"$folder/debootstrap.log"

for file in /etc/resolv.conf /etc/hosts /etc/pip.conf /etc/ssl/certs/ca-certificates.crt; do
  [[ ! -e $file ]] || install -D -m 644 "$file" "$root$file"
done
mkdir -p "$root/etc/apt/apt.conf.d"
apt-config dump --no-empty Acquire::http Acquire::https >"$root/etc/apt/apt.conf.d/90host"
git clone --quiet --no-local . "$root/src/tessera"
kept=$(env | sed -n 's/^\(PIP_[A-Z_]*\|[A-Za-z]*_proxy\|[A-Z]*_PROXY\)=.*/\1/p')

# script: runs it inside, in namespaces that end with it
inside() {
  local settings=(HOME=/root TERM=dumb LANG=C.UTF-8 PATH=/usr/sbin:/usr/bin:/sbin:/bin) name
  for name in $kept; do settings+=("$name=${!name}"); done
  unshare --mount --pid --fork --mount-proc="$root/proc" bash -c '
    mount --rbind /dev "$1/dev" && mount -t tmpfs tmpfs "$1/tmp" && exec env -i "${@:3}" chroot "$1" "/src/tessera/scripts/$2.sh"' \
    -- "$root" "$1" "${settings[@]}"
}
status=0
for script; do
  begin=$SECONDS result=passed
  inside "$script" >"$folder/$script.log" 2>&1 </dev/null || result="failed ($?)" status=1
  grep -E 'tests passed|tests failed|^verdicts|PASS|FAIL' "$folder/$script.log" | tail -n 3 || true
  echo "scripts/$script.sh $result after $((SECONDS - begin)) s in a bare Debian 12"
done
exit $status
