// SPDX-License-Identifier: MIT
#pragma once
// Checks of the conformance suite in other files, and the findings of all checks.
#include <set>
#include <string>
#include <vector>

#include "lib/testing/checked_player.h"

namespace tessera::testing {

// Collects distinct texts from all ranks.
class Findings {
 public:
  void expect(bool condition, const std::string& text) {
    if (!condition && seen_.insert(text).second) texts_.push_back(text);
  }
  // difference: "" for none.
  void add(const std::string& what, const std::string& difference) {
    expect(difference.empty(), what + ": " + difference);
  }
  void take(const std::vector<Outcome>& outcomes) {
    for (const Outcome& outcome : outcomes) {
      for (const std::string& text : outcome.findings) expect(false, text);
    }
  }
  const std::vector<std::string>& texts() const { return texts_; }

 private:
  std::set<std::string> seen_;
  std::vector<std::string> texts_;
};

using Check = void (*)(const Subject&, Findings&);

void check_trajectory(const Subject& subject, Findings& findings);
void check_exact_gradients(const Subject& subject, Findings& findings);
void check_accumulation(const Subject& subject, Findings& findings);
void check_dry_communication(const Subject& subject, Findings& findings);
void check_state(const Subject& subject, Findings& findings);

}  // namespace tessera::testing
