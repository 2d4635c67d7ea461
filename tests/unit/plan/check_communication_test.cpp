// SPDX-License-Identifier: MIT
// Every layout of the tables is correct, and the operations of ranks that do not run are derived
// correctly.
#include "tessera/plan/check_communication.h"

#include <map>

#include "lib/plan/rank_sequences.h"
#include "tessera/models/language_model.h"
#include "tests/support/sized.h"
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

std::string text_of(const RankOperations& rank) {
  std::string text;
  for (const LedgerCommunicator& each : rank.communicators) {
    text += concat(each.name, " place ", each.rank, " of");
    for (const int member : each.ranks) text += concat(" ", member);
    text += "\n";
  }
  for (const LedgerOperation& o : rank.calls->operations) {
    text += concat(o.communicator, " ", tessera::name_of(o.kind), " ", o.numel, " ", o.dtype, " ",
                   o.peer, " ", o.name, "\n");
  }
  return text;
}

// Compares derived operations with those of a run of the same rank.
void require_derived(const Layout& layout) {
  INFO(layout.name());
  std::map<int, RankRun> all;
  const RankSequences::Run run = [&](const MeshCoordinate& at) -> RankRun {
    const int rank = rank_of(at, layout.mesh);
    if (!all.contains(rank)) all.emplace(rank, follow_run(step_of(layout), at, {}));
    return all.at(rank);
  };
  const RankSequences derived(layout.mesh, /*every_rank=*/false, run);
  CHECK(derived.runs() < layout.ranks());
  const RankSequences own(layout.mesh, /*every_rank=*/true, run);
  for (int rank = 0; rank < layout.ranks(); ++rank) {
    const auto place = static_cast<size_t>(rank);
    CHECK(text_of(derived.ranks()[place]) == text_of(own.ranks()[place]));
  }
}

}  // namespace

TEST_CASE("what a rank calls follows from ranks that do the same") {
  const auto layout = [](const std::string& strategy, MeshExtents mesh) {
    Layout made{.parallel = {.strategy = strategy},
                .mesh = mesh,
                .accumulation = 4,
                .model = causal(
                    sized("bloom", {.vocabulary = 256, .hidden = 64, .heads = 4, .layers = 2}))};
    made.parallel.persistence_threshold = 1000;
    return made;
  };
  for (const char* name : {"ddp", "zero1", "zero2", "zero3", "fsdp"}) {
    require_derived(layout(name, {.data = 5}));
    require_derived(layout(name, {.data = 2, .tensor = 4}));
    require_derived(layout(name, {.pipeline = 2, .data = 4}));
  }
  Layout hybrid = layout("fsdp", {.data = 8});
  hybrid.parallel.shard_ranks = 2;
  require_derived(hybrid);
  Layout own_tokens = layout("zero2", {.data = 4, .tensor = 4});
  own_tokens.parallel.sequence_parallel = true;
  require_derived(own_tokens);
  require_derived(layout("zero2", {.data = 2, .context = 4}));
  for (const char* name : {"ddp", "zero3"}) {
    Layout experts = layout(name, {.data = 6, .expert = 2});
    experts.model = small_experts();
    require_derived(experts);
  }
  Layout shared = layout("zero1", {.pipeline = 2, .data = 4});
  shared.parallel.pipeline.shared_vocabulary = true;
  require_derived(shared);
}

TEST_CASE("communication of every layout is right: a language model") { require_right(layouts()); }

TEST_CASE("communication of every layout is right: whole matrices") {
  require_right(matrix_layouts());
}

TEST_CASE("communication of every layout is right: blocks of all sizes") {
  require_right(memory_layouts());
}
