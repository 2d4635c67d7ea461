// SPDX-License-Identifier: MIT
#include "lib/core/nearest.h"

#include <algorithm>
#include <cctype>
#include <numeric>

namespace tessera {
namespace {

// Levenshtein distance with one row of memory
size_t edit_distance(const std::string& a, const std::string& b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t substituted = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({substituted, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row.back();
}

// Lower case without dashes, underscores and spaces, so that ZeRO-3 matches zero3.
std::string plain(const std::string& name) {
  std::string letters;
  for (const char c : name) {
    if (c != '-' && c != '_' && c != ' ') {
      letters += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    }
  }
  return letters;
}

}  // namespace

std::string nearest_name(const std::string& name, const std::vector<std::string>& candidates) {
  for (const std::string& candidate : candidates) {
    if (plain(candidate) == plain(name)) return candidate;
  }
  std::string best;
  size_t least = name.size() < 4 ? 2 : std::max<size_t>(3, name.size() / 3 + 1);
  for (const std::string& candidate : candidates) {
    if (const size_t distance = edit_distance(name, candidate); distance < least) {
      least = distance;
      best = candidate;
    }
  }
  return best;
}

std::string nearest_hint(const std::string& name, const std::vector<std::string>& candidates) {
  const std::string nearest = nearest_name(name, candidates);
  return nearest.empty() ? "" : "; the nearest is " + nearest;
}

}  // namespace tessera
