// SPDX-License-Identifier: MIT
// The first step after attach() against a dry run of it, as compared by --check_communication: on
// every rank of layouts of all kinds, with shapes that differ between data ranks.
#include <ATen/ATen.h>

#include <atomic>
#include <limits>

#include "lib/comm/expected_operations.h"
#include "lib/ops/update.h"
#include "lib/plan/dry_first_step.h"
#include "lib/testing/player.h"
#include "tests/support/ranks.hpp"
#include "tests/support/test.hpp"
#include "tests/unit/plan/layouts.h"

using namespace tessera;
using namespace tessera::testing;

namespace {

// Micro-batches of one data rank; the last is shorter.
std::vector<MicroBatch> uneven_batches(const Layout& layout, int data_rank) {
  std::vector<MicroBatch> batches;
  for (int i = 0; i < layout.accumulation; ++i) {
    const int64_t rows = 2, length = 8 - 2 * (i + 1 == layout.accumulation) + 2 * data_rank;
    const at::Tensor ids = at::arange(rows * length).view({rows, length});
    batches.push_back(make_micro_batch(ids, ids + 1));
  }
  return batches;
}

// skips: skips the update, as after a non-finite gradient.
size_t compare(Communicator& ranks, const Layout& layout, bool uneven, bool skips) {
  const MeshCoordinate coordinate = coordinate_of(ranks.rank(), layout.mesh);
  const std::vector<MicroBatch> batches =
      uneven ? uneven_batches(layout, coordinate.data) : batches_of(layout);
  ExpectedOperations expected(dry_first_step({.model = layout.model,
                                              .parallel = layout.parallel,
                                              .optimizer = layout.optimizer,
                                              .mesh = layout.mesh,
                                              .coordinate = coordinate,
                                              .micro_batches = batches}),
                              "the first step");
  const auto ledger = std::make_shared<CommunicationLedger>();
  const auto world = record_operations(
      ranks.split(0, ranks.rank()), ledger, [&](const LedgerOperation& operation) {
        expected.next(operation, ledger->communicators[operation.communicator]);
      });
  ledger->paused = true;
  const Player player(*world, {.model = layout.model,
                               .mesh = layout.mesh,
                               .parallel = layout.parallel,
                               .optimizer = layout.optimizer});
  ledger->paused = false;
  Strategy& strategy = player.strategy();
  const at::Tensor scale = at::full({}, skips ? std::numeric_limits<float>::infinity() : 1.0F);
  strategy.set_loss_scale(scale);
  strategy.forward_backward(batches);
  const auto [norm, clip, factor, found_inf] =
      ops::clipping(strategy.grad_norm_squared(), scale, /*max_norm=*/1);
  strategy.scale_gradients(factor);
  strategy.optimizer_step(1e-3, found_inf);
  test::require(skips == (found_inf.item<float>() != 0), "the step was", skips ? " not" : "",
                " skipped");
  expected.require_all();
  ledger->paused = true;
  return expected.count();
}

void compare_all(const std::vector<Layout>& layouts, size_t first, size_t every, bool uneven,
                 bool skips = false) {
  for (size_t i = first; i < layouts.size(); i += every) {
    const Layout& layout = layouts[i];
    INFO(layout.name());
    std::atomic<size_t> most = 0;
    CHECK_NOTHROW(test::run_ranks(layout.ranks(), [&](Communicator& world) {
      const size_t count = compare(world, layout, uneven, skips);
      if (world.rank() == 0) most = count;
    }));
    CHECK((most > 0) == (layout.ranks() > 1));
  }
}

}  // namespace

TEST_CASE("the first step calls what a dry run of it says: rows of equal lengths") {
  compare_all(layouts(), 0, 9, /*uneven=*/false);
  compare_all(memory_layouts(), 200, 23, /*uneven=*/false);
}

TEST_CASE("the first step calls what a dry run of it says: rows whose lengths differ") {
  compare_all(layouts(), 4, 9, /*uneven=*/true);
}

TEST_CASE("the first step calls what a dry run of it says: experts that ranks own") {
  std::vector<Layout> experts = layouts();
  std::erase_if(experts, [](const Layout& layout) { return layout.mesh.expert == 1; });
  REQUIRE(experts.size() > 10);
  compare_all(experts, 0, 2, /*uneven=*/false);
  compare_all(experts, 1, 2, /*uneven=*/true);
}

TEST_CASE("the first step calls what a dry run of it says: whole matrices, also a skipped update") {
  compare_all(matrix_layouts(), 1, 5, /*uneven=*/true);
  compare_all(matrix_layouts(), 2, 5, /*uneven=*/true, /*skips=*/true);
}
