#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Draws the pictures of the pages again: terminals, the report and the site, into docs/assets/screens.
#   scripts/screenshots.sh [FOLDER_OF_PROGRAMS]   (build/release/bin) needs tmux, chromium, pngquant and a built site (scripts/site.sh)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
(($# <= 1)) || { sed -n '3,4s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2; exit 2; }
programs=${1:-build/release/bin}
browser=$(command -v chromium || command -v chromium-browser || command -v google-chrome || true)
missing=()
for program in tmux pngquant; do command -v "$program" >/dev/null || missing+=("$program"); done
[[ -n $browser ]] || missing+=(chromium)
((${#missing[@]} == 0)) || { echo "screenshots: ${missing[*]} missing; apt-get install --no-install-recommends ${missing[*]}" >&2; exit 1; }
[[ -x $programs/tessera-compare ]] || { echo "screenshots: no programs in $programs; scripts/build.sh makes them" >&2; exit 1; }
[[ -e build/site/index.html ]] || { echo "screenshots: no build/site; scripts/site.sh makes it" >&2; exit 1; }
exec python3 -B scripts/screenshots.py "$programs" build/site "$browser"
