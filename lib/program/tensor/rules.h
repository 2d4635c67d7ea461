// SPDX-License-Identifier: MIT
#pragma once
// Rules of the tensor axis: how each linear layer and table is cut, by its path.
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tessera/core/json.h"

namespace tessera::program {

enum class TensorRule {
  kColumns,     // outputs are shared by the ranks
  kRows,        // inputs are
  kVocabulary,  // rows of a table, or classes of a head, are
  kWhole,       // each rank has all of it
};

struct PathRule {
  TensorRule rule = TensorRule::kWhole;
  int parts = 1;  // equal parts of the outputs, each of which is shared: 3 for fused q, k, v
};

class TensorRules {
 public:
  TensorRules();  // those of known families

  // Adds rules in front of the known ones, of a JSON object: path, or end of a path behind a dot,
  // to "columns", "rows", "vocabulary", "whole", or {"cut": ..., "parts": n}. Throws
  // Error(kDataLoss) with the place for anything else.
  void add(const Json& rules);

  // The rule with the longest end of the path; null: none.
  const PathRule* find(std::string_view path) const;

 private:
  std::vector<std::pair<std::string, PathRule>> rules_;
};

}  // namespace tessera::program
