// SPDX-License-Identifier: MIT
// Every layout of the tables is right; and what a rank does that does not run follows from one that
// does.
#include "tessera/plan/check_communication.h"

#include "lib/plan/rank_sequences.h"
#include "tests/support/test.hpp"
#include "tests/unit/plan/layouts.h"

using namespace tessera;
using namespace tessera::testing;

namespace {

DryStep step_of(const Layout& layout) {
  return {.model = layout.model,
          .parallel = layout.parallel,
          .optimizer = layout.optimizer,
          .mesh = layout.mesh,
          .coordinate = {},
          .micro_batches = batches_of(layout)};
}

std::string all_of(const CommunicationCheck& check) {
  std::string text;
  for (const CommunicationProblem& each : check.problems) text += to_text(each) + "\n";
  for (const std::string& each : check.notes) text += each + "\n";
  return text;
}

void require_right(const std::vector<Layout>& layouts) {
  for (const Layout& layout : layouts) {
    INFO(layout.name());
    const CommunicationCheck check = check_communication(step_of(layout));
    CHECK(all_of(check) == "");
    CHECK(check.ranks == layout.ranks());
  }
}

}  // namespace

TEST_CASE("communication of every layout is right: a language model") { require_right(layouts()); }

TEST_CASE("communication of every layout is right: whole matrices") {
  require_right(matrix_layouts());
}

TEST_CASE("communication of every layout is right: blocks of all sizes") {
  require_right(memory_layouts());
}
