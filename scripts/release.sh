#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Checks that this commit can be released, and tags it: vMAJOR.MINOR.PATCH of include/tessera/core/version.h.
#   scripts/release.sh [--dry-run]     --dry-run: checks only
# Every problem is named; the status is 1 when there is one. Pushing the tag builds the wheel (.github/workflows/wheel.yml).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
dry=
case ${1:-} in
  --dry-run) dry=1 ;;
  '') ;;
  *) sed -n '3,5s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2; exit 2 ;;
esac
problems=0
problem() { echo "release: $*" >&2; problems=$((problems + 1)); }

# --- the version, in one place; what cannot read it there says the same
number() { sed -n "s/^#define TESSERA_VERSION_$1 \([0-9]\+\)$/\1/p" include/tessera/core/version.h; }
version=$(number MAJOR).$(number MINOR).$(number PATCH)
[[ $version =~ ^[0-9]+\.[0-9]+\.[0-9]+$ ]] || problem "include/tessera/core/version.h says no version: '$version'"
cited=$(sed -n 's/^version: //p' CITATION.cff)
[[ $cited == "$version" ]] || problem "CITATION.cff is of version '$cited', version.h of $version"
grep -q "^## $version\b" CHANGELOG.md || problem "CHANGELOG.md has no heading '## $version'"
! sed -n '/^## Unreleased/,/^## [0-9]/p' CHANGELOG.md | grep -q '^- ' ||
  problem "CHANGELOG.md has entries under 'Unreleased'; move them under '## $version'"
while IFS=: read -r file asked; do
  [[ $asked == "${version%.*}" ]] || problem "$file asks for tessera $asked, and a package of another minor version is refused"
done < <(grep -rHoE 'find_package\(tessera [0-9.]+' README.md docs tests/package --include=*.md --include=CMakeLists.txt 2>/dev/null | sed 's/find_package(tessera //' | sort -u)
! grep -nE '^version = ' pyproject.toml || problem "pyproject.toml says a version of its own"

# --- the commit
tag=v$version
! git rev-parse --quiet --verify "refs/tags/$tag" >/dev/null || problem "the tag $tag is there already; raise the version in version.h"
[[ -z $(git status --porcelain) ]] || problem "the tree is not clean: $(git status --porcelain | head -3 | tr '\n' ' ')"

# --- NOTICE names what is linked: each find_package and tessera_external of the build, by the name in NOTICE
named() {
  case $1 in
    absl) echo Abseil ;; hwy) echo Highway ;; XXHASH) echo xxHash ;; nlohmann_json) echo nlohmann/json ;; nanobind) echo nanobind ;;
    cudnn | CUDNN_FRONTEND) echo cudnn-frontend ;; nccl) echo NCCL ;; cudart) echo CUDA ;; cublas_lt) echo cuBLAS ;; CUDAToolkit) echo CUDA ;;
    hwloc) echo hwloc ;; mpi | MPI) echo 'Open MPI' ;; OpenMP) echo OpenMP ;; Threads | Python | Python3) echo - ;; torch) echo LibTorch ;;
    *) ;;
  esac
}
parts=$(sed -n 's/^ *find_package(\([A-Za-z0-9_]*\)\b.*/\1/p; s/^ *tessera_external(\([a-z_]*\) .*/\1/p; s/^ *find_path(\([A-Z_]*\)_INCLUDE_DIR .*/\1/p' \
  cmake/TesseraFeatures.cmake python/CMakeLists.txt | sort -u)
for part in $parts torch; do
  case $part in HWY | HWLOC | NCCL | CUDNN) part=${part,,} ;; esac
  name=$(named "$part")
  if [[ -z $name ]]; then
    problem "the build looks for '$part'; say in scripts/release.sh how NOTICE names it"
  elif [[ $name != - ]] && ! grep -q "^\([^ ].*\)\?\b${name//\//\\/}\b" NOTICE; then
    problem "NOTICE does not name $name"
  fi
done
grep -q '^Unicode data' NOTICE || problem "NOTICE does not name the Unicode data"
for file in LICENSE NOTICE CITATION.cff SECURITY.md CODE_OF_CONDUCT.md CONTRIBUTING.md CHANGELOG.md README.md; do
  [[ -s $file ]] || problem "there is no $file"
done

# --- rules of the sources, the licence in every file among them
python3 -B tests/lint/source_tree.py . || problem "the source tree breaks rules"

((problems == 0)) || { echo "release: $problems problems; $tag was not made" >&2; exit 1; }
if [[ -n $dry ]]; then
  echo "release: $tag could be made of $(git rev-parse --short=12 HEAD)"
  exit
fi
git tag --annotate "$tag" --message "tessera $version"
echo "release: made the tag $tag; publish it:  git push origin $tag"
