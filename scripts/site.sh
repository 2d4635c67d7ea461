#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Builds the documentation site into build/site; a warning is an error, and so is a phrase whose page the search does not find first. With doxygen (apt-get install doxygen) the API lies in build/site/api.
#   scripts/site.sh [--serve]     --serve: at http://localhost:8000, made again when a page changes
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
[[ $# == 0 || ($# == 1 && $1 == --serve) ]] || { sed -n '3,4s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2; exit 2; }
export NO_MKDOCS_2_WARNING=1  # of a successor
venv=.deps/site stamp=.deps/site/requirements.txt
if ! cmp -s docs/requirements.txt "$stamp"; then
  python3 -m venv "$venv" || { echo "site: python3 -m venv failed; install python3-venv" >&2; exit 1; }
  "$venv/bin/python" -m pip install --quiet -r docs/requirements.txt
  cp docs/requirements.txt "$stamp"
fi
if [[ ${1:-} == --serve ]]; then exec "$venv/bin/mkdocs" serve; fi
"$venv/bin/mkdocs" build --strict
timeout 120 "$venv/bin/python" -B scripts/site_search.py
if command -v doxygen >/dev/null && [[ -e docs/Doxyfile ]]; then
  doxygen docs/Doxyfile
  python3 -B scripts/site_api.py build/site
  echo "site: build/site/index.html, API in build/site/api/index.html"
else
  echo "site: build/site/index.html, without the API (no doxygen)"
fi
