// SPDX-License-Identifier: MIT
// What every strategy and combination holds and sends, by its own account and by the allocator's,
// against the formulas of docs/concepts/strategies.md.
#include <functional>

#include "tests/support/counting_allocator.h"
#include "tests/support/ranks.hpp"
#include "tests/support/test.hpp"
#include "tests/unit/plan/layouts.h"

using namespace tessera;
using namespace tessera::testing;

namespace {

// Of formulas that leave out what is small on purpose: activations, norms, counters.
constexpr double kTolerance = 0.1;
constexpr double kScalars = 8192;  // bytes

void require_close(const std::string& what, int64_t actual, double expected,
                   double tolerance = kTolerance) {
  test::require(std::abs(double(actual) - expected) <= tolerance * expected + kScalars, what,
                " is ", actual, " bytes, the formula says ", expected);
}

void require_equal(const std::string& what, int64_t actual, double expected) {
  test::require(double(actual) == expected, what, " is ", actual, " bytes, the formula says ",
                expected);
}

void require_account(const Layout& layout, const StrategyMemory& memory,
                     const LayoutCost& formula) {
  require_equal("parameter_bytes", memory.parameter_bytes, formula.parameter_bytes);
  require_equal("gradient_bytes", memory.gradient_bytes, formula.gradient_bytes);
  require_equal("optimizer_bytes", memory.optimizer_bytes, formula.optimizer_bytes);
  // Norms lie at a unit's end, so that the formula is of the data rank that owns most of them.
  const bool by_rank = layout.parallel.sequence_parallel && layout.mesh.data > 1;
  if (!by_rank || double(memory.buffer_bytes) > formula.buffer_bytes) {
    require_equal("buffer_bytes", memory.buffer_bytes, formula.buffer_bytes);
  }
  require_equal("host_bytes", memory.host_bytes, formula.host_bytes);
}

// All ranks together, of which some may hold copies of small and of tied parameters.
void require_saved(const Layout& layout, const Measured& measured) {
  double saved = 0;
  for (int stage = 0; stage < layout.mesh.pipeline; ++stage) {
    saved += layout_cost(layout.plan(), stage).saved_bytes * layout.mesh.data * layout.mesh.tensor;
  }
  require_close("saved by all ranks", measured.saved_by_all, saved);
}

// check(layout, measured, formula) on every rank of every layout.
void for_all_ranks(
    const std::vector<Layout>& layouts,
    const std::function<void(const Layout&, const Measured&, const LayoutCost&)>& check) {
  CountingAllocator counting;
  for (const Layout& layout : layouts) {
    INFO(layout.name());
    std::string problem;
    try {
      test::run_ranks(layout.ranks(), [&](Communicator& world) {
        const Measured measured = measure(world, layout);
        const int stage = world.rank() / (layout.mesh.data * layout.mesh.tensor);
        check(layout, measured, layout_cost(layout.plan(), stage));
      });
    } catch (const std::exception& error) {
      problem = error.what();
    }
    CHECK(problem == "");
  }
}

}  // namespace

TEST_CASE("memory and traffic of every rank follow the formulas") {
  for_all_ranks(
      layouts(), [](const Layout& layout, const Measured& measured, const LayoutCost& formula) {
        require_account(layout, measured.reported, formula);
        const double held = formula.device_bytes() + formula.host_bytes;  // one memory on the CPU
        require_close("allocated after attach", measured.live_after_attach, held);
        require_close("allocated after a step", measured.live_after_step, held);
        require_saved(layout, measured);
        require_close("sent in a step", measured.sent_in_a_step, formula.comm_bytes_per_step);
      });
}

TEST_CASE("whole matrices: what the rank that owns most holds and sends follows the formulas") {
  for_all_ranks(matrix_layouts(), [](const Layout& layout, const Measured& measured,
                                     const LayoutCost& formula) {
    const StrategyMemory& memory = measured.reported;
    require_equal("parameter_bytes", memory.parameter_bytes, formula.parameter_bytes);
    require_equal("gradient_bytes", memory.gradient_bytes, formula.gradient_bytes);
    require_equal("buffer_bytes", memory.buffer_bytes, formula.buffer_bytes);
    const auto state = double(memory.optimizer_bytes + memory.host_bytes);
    const double most = formula.optimizer_bytes + formula.host_bytes;
    // Owners are balanced to one matrix: the largest has 4 * 128 * 128 elements.
    constexpr double kMatrix = 4.0 * 4 * 128 * 128;
    test::require(state <= most && state >= most - 2 * kMatrix, "state is ", state,
                  " bytes, the formula says at most ", most);
    const double held = double(measured.live_after_step);
    test::require(held <= formula.device_bytes() + formula.host_bytes + kScalars &&
                      held >= formula.device_bytes() + formula.host_bytes - 2 * kMatrix - kScalars,
                  "allocated are ", held, " bytes, the formula says ",
                  formula.device_bytes() + formula.host_bytes);
    const auto sent = double(measured.sent_in_a_step);
    test::require(sent <= 1.02 * formula.comm_bytes_per_step + kScalars &&
                      sent >= 0.5 * formula.comm_bytes_per_step - kScalars,
                  "sent in a step are ", sent, " bytes, the formula says ",
                  formula.comm_bytes_per_step);
    require_saved(layout, measured);
  });
}

TEST_CASE("the peak of a step is what the formula says, within 2 %") {
  constexpr double kSlack = 0.02;
  for_all_ranks(memory_layouts(), [](const Layout& layout, const Measured& measured,
                                     const LayoutCost& formula) {
    require_account(layout, measured.reported, formula);
    const double held = formula.device_bytes() + formula.host_bytes;
    test::require(std::abs(double(measured.peak_of_steps) - held) <= kSlack * held, "the peak is ",
                  measured.peak_of_steps, " bytes, the formula says ", held, "; after attach ",
                  measured.live_after_attach, " were allocated");
    require_close("sent in a step", measured.sent_in_a_step, formula.comm_bytes_per_step, kSlack);
  });
}

TEST_CASE("sharded parameters are built without any rank ever holding more than one unit in full") {
  CountingAllocator counting;
  for (const std::string name : {"zero3", "fsdp"}) {
    const Layout layout{
        .parallel = {.strategy = name}, .mesh = {.data = 4}, .model = small_bloom()};
    test::run_ranks(4, [&](Communicator& world) {
      const Measured measured = measure(world, layout);
      constexpr double kLayer = 12.0 * 128 * 128 * 4;  // bytes
      // A block as built and its flat copy, besides what stays.
      const double limit = double(measured.live_after_attach) + 2.3 * kLayer;
      test::require(double(measured.peak_of_attach) <= limit, name, ": peak while building is ",
                    measured.peak_of_attach, ", limit ", limit);
    });
  }
}
