// SPDX-License-Identifier: MIT
// A dry step compared with a real one on every rank of every layout: memory to the byte by its own
// account, and operations in order.
#include "tessera/plan/dry_step.h"

#include <cmath>

#include "lib/plan/rank_planner.h"
#include "tests/support/counting_allocator.h"
#include "tests/support/ranks.hpp"
#include "tests/support/test.hpp"
#include "tests/unit/plan/layouts.h"

using namespace tessera;
using namespace tessera::testing;

namespace {

// Host scalars are not counted.
constexpr double kScalars = 8192;  // bytes

StepLedger dry(const Layout& layout, int rank) {
  return dry_step({.model = layout.model,
                   .parallel = layout.parallel,
                   .optimizer = layout.optimizer,
                   .mesh = layout.mesh,
                   .coordinate = coordinate_of(rank, layout.mesh),
                   .micro_batches = batches_of(layout)});
}

void require_equal(const std::string& what, int64_t actual, int64_t dry) {
  test::require(actual == dry, what, " is ", actual, " bytes, the dry step says ", dry);
}

void require_close(const std::string& what, int64_t actual, int64_t dry, double tolerance) {
  test::require(std::abs(double(actual - dry)) <= tolerance * double(dry) + kScalars, what, " is ",
                actual, " bytes, the dry step says ", dry, ": ",
                100 * (double(dry) / double(actual) - 1), " %");
}

std::string text_of(const LedgerOperation& o, const CommunicationLedger& ledger) {
  std::string text = concat(name_of(o.kind), " on ", ledger.communicators[o.communicator].name,
                            " of ", o.numel, " ", o.dtype, " peer ", o.peer, " start ", o.start,
                            " op ", static_cast<int>(o.reduce), " \"", o.name, "\" in ", o.phase,
                            " waited ", ledger.waited[static_cast<size_t>(o.start)]);
  for (const int64_t count : o.output_counts) text += concat(" ", count);
  return text;
}

void require_same_calls(const CommunicationLedger& actual, const CommunicationLedger& dry) {
  const size_t most = std::max(actual.operations.size(), dry.operations.size());
  for (size_t i = 0; i < most; ++i) {
    const auto text = [&](const CommunicationLedger& ledger) {
      return i < ledger.operations.size() ? text_of(ledger.operations[i], ledger) : "nothing";
    };
    test::require(text(actual) == text(dry), "operation ", i, " of ", actual.operations.size(),
                  " is ", text(actual), ", the dry step says ", text(dry), " (of ",
                  dry.operations.size(), ")");
  }
}

// As a run counts it: without reductions over all ranks.
int64_t sent_over_axes(const CommunicationLedger& ledger) {
  int64_t sent = 0;
  for (const LedgerOperation& o : ledger.operations) {
    if (ledger.communicators[o.communicator].name != "world") sent += o.bytes_sent;
  }
  return sent;
}

void compare(const Layout& layout, int rank, const Measured& measured) {
  const StepLedger ledger = dry(layout, rank);
  const StrategyMemory &real = measured.reported, &said = ledger.state;
  require_equal("parameter_bytes", real.parameter_bytes, said.parameter_bytes);
  require_equal("gradient_bytes", real.gradient_bytes, said.gradient_bytes);
  require_equal("optimizer_bytes", real.optimizer_bytes, said.optimizer_bytes);
  require_equal("buffer_bytes", real.buffer_bytes, said.buffer_bytes);
  require_equal("host_bytes", real.host_bytes, said.host_bytes);
  require_close("live after a step", measured.live_after_step,
                ledger.device.lasting + ledger.host.lasting - ledger.input_bytes, 0);
  require_close("the peak", measured.peak_of_steps, ledger.device.bytes + ledger.host.bytes, 0.02);
  require_same_calls(measured.communication, ledger.communication);
  require_equal("sent in a step", measured.sent_in_a_step, sent_over_axes(ledger.communication));
}

PlannedLayout layout_to_plan(const Layout& layout) {
  return {.parallel = layout.parallel,
          .mesh = layout.mesh,
          .accumulation = layout.accumulation,
          .model = layout.model,
          .optimizer = layout.optimizer};
}

// Runs with a repeated equal pass against runs of all passes.
void require_equal_passes(const PlannedLayout& layout, const BatchShape& batch,
                          const MeshCoordinate& coordinate) {
  struct Taken {
    double peak = 0;
    std::string others;
  };
  const auto taken = [&](const PlannedLayout& of) {
    RankPlanner rank(of, coordinate);
    Taken taken{rank.step(batch).total(), ""};
    const StateMemory state = rank.state();
    for (const Traffic& one : state.traffic) {
      taken.others += concat(one.what, " ", one.operation, " ", one.ranks, " ", one.bytes, "; ");
    }
    taken.others += concat("saved ", state.saved_bytes);
    return taken;
  };
  const PlannedLayout shared = with_passes(layout);
  taken(shared);  // records the passes
  const Taken all = taken(layout), equal = taken(shared);
  test::require(std::abs(all.peak - equal.peak) <= 64, "passes that all run take ", all.peak,
                " bytes, equal ones ", equal.peak);
  test::require(all.others == equal.others, "passes that all run: ", all.others,
                ", equal ones: ", equal.others);
}

void require_saved(const Layout& layout, int64_t saved) {
  double planned = 0;
  for (int rank = 0; rank < layout.ranks(); ++rank) {
    const PlannedLayout planned_layout = layout_to_plan(layout);
    RankPlanner planner(planned_layout, coordinate_of(rank, layout.mesh));
    planner.step(shape_of(batches_of(layout).front()));
    planned += planner.state().saved_bytes;
  }
  test::require(static_cast<double>(saved) == planned, "saved by all ranks are ", saved,
                " bytes, the plans say ", planned);
}

// plans: also compares saved state and equal passes.
void compare_all(const std::vector<Layout>& layouts, bool plans) {
  CountingAllocator counting;
  for (const Layout& layout : layouts) {
    INFO(layout.name());
    std::vector<Measured> measured(static_cast<size_t>(layout.ranks()));
    test::run_ranks(layout.ranks(), [&](Communicator& world) {
      measured[static_cast<size_t>(world.rank())] = measure(world, layout);
    });
    for (int rank = 0; rank < layout.ranks(); ++rank) {
      std::string problem;
      try {
        compare(layout, rank, measured[static_cast<size_t>(rank)]);
      } catch (const std::exception& error) {
        problem = concat("rank ", rank, ": ", error.what());
      }
      CHECK(problem == "");
    }
    if (!plans) continue;
    std::string problem;
    try {
      require_saved(layout, measured.front().saved_by_all);
      for (int stage = 0; stage < layout.mesh.pipeline; ++stage) {
        require_equal_passes(layout_to_plan(layout), shape_of(batches_of(layout).front()),
                             {.pipeline = stage});
      }
    } catch (const std::exception& error) {
      problem = error.what();
    }
    CHECK(problem == "");
  }
}

}  // namespace

TEST_CASE("a dry step holds and calls what a real one does: a language model") {
  compare_all(layouts(), /*plans=*/true);
}

TEST_CASE("a dry step holds and calls what a real one does: whole matrices") {
  compare_all(matrix_layouts(), /*plans=*/true);
}

TEST_CASE("a dry step holds and calls what a real one does: blocks of all sizes") {
  compare_all(memory_layouts(), /*plans=*/false);
}

TEST_CASE("sharded parameters are built without any rank ever holding more than one unit in full") {
  CountingAllocator counting;
  for (const std::string name : {"zero3", "fsdp"}) {
    const Layout layout{
        .parallel = {.strategy = name}, .mesh = {.data = 4}, .model = small_bloom()};
    test::run_ranks(4, [&](Communicator& world) {
      const Measured measured = measure(world, layout);
      constexpr double kLayer = 12.0 * 128 * 128 * 4;  // bytes
      // A block as built and its flat copy, besides persistent memory.
      const double limit = double(measured.live_after_attach) + 2.3 * kLayer;
      test::require(double(measured.peak_of_attach) <= limit, name, ": peak while building is ",
                    measured.peak_of_attach, ", limit ", limit);
    });
  }
}
