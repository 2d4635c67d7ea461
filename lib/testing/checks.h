// SPDX-License-Identifier: MIT
#pragma once
// Checks of the conformance suite in other files, and the violations of all checks.
#include <set>
#include <string>
#include <vector>

#include "lib/testing/checked_player.h"

namespace tessera::testing {

// Collects distinct texts from all ranks.
class Violations {
 public:
  void expect(bool condition, const std::string& text) {
    if (!condition && seen_.insert(text).second) texts_.push_back(text);
  }
  // difference: "" for none.
  void add(const std::string& what, const std::string& difference) {
    expect(difference.empty(), what + ": " + difference);
  }
  void take(const std::vector<RankResult>& results) {
    for (const RankResult& result : results) {
      for (const std::string& text : result.violations) expect(false, text);
    }
  }
  const std::vector<std::string>& texts() const { return texts_; }

 private:
  std::set<std::string> seen_;
  std::vector<std::string> texts_;
};

using Check = void (*)(const Subject&, Violations&);

void check_trajectory(const Subject& subject, Violations& violations);
void check_exact_gradients(const Subject& subject, Violations& violations);
void check_accumulation(const Subject& subject, Violations& violations);
void check_dry_communication(const Subject& subject, Violations& violations);
void check_state(const Subject& subject, Violations& violations);

}  // namespace tessera::testing
