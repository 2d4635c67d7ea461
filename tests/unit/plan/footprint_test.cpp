// What every strategy and combination holds and sends, by its own account and by the allocator's,
// against the formulas of docs/strategies.md.
#include "tests/support/counting_allocator.h"
#include "tests/support/ranks.hpp"
#include "tests/support/test.hpp"
#include "tests/unit/plan/layouts.h"

using namespace tessera;
using namespace tessera::testing;

namespace {

constexpr double kTolerance = 0.1;
constexpr double kScalars = 8192;  // bytes: norms, counters, what is not worth a formula

void require_close(const std::string& what, double actual, double expected) {
  test::require(std::abs(actual - expected) <= kTolerance * expected + kScalars, what, " is ",
                actual, " bytes, the formula says ", expected);
}

void check_rank(Communicator& world, const Layout& layout) {
  const Measured measured = measure(world, layout);
  const int stage = world.rank() / (layout.mesh.data * layout.mesh.tensor);
  const LayoutCost formula = layout_cost(layout.plan(), stage);
  const StrategyMemory& memory = measured.reported;
  const std::string at = concat(" of rank ", world.rank());
  require_close("parameter_bytes" + at, double(memory.parameter_bytes), formula.parameter_bytes);
  require_close("gradient_bytes" + at, double(memory.gradient_bytes), formula.gradient_bytes);
  require_close("optimizer_bytes" + at, double(memory.optimizer_bytes), formula.optimizer_bytes);
  require_close("buffer_bytes" + at, double(memory.buffer_bytes), formula.buffer_bytes);
  require_close("host_bytes" + at, double(memory.host_bytes), formula.host_bytes);
  const double held = formula.device_bytes() + formula.host_bytes;  // one memory on the CPU
  require_close("allocated after attach" + at, double(measured.live_after_attach), held);
  require_close("allocated after a step" + at, double(measured.live_after_step), held);
  require_close("sent in a step" + at, double(measured.sent_in_a_step),
                formula.comm_bytes_per_step);
}

}  // namespace

TEST_CASE("memory and traffic of every rank follow the formulas") {
  CountingAllocator counting;
  for (const Layout& layout : layouts()) {
    INFO(layout.name());
    std::string problem;
    try {
      test::run_ranks(layout.ranks(), [&](Communicator& world) { check_rank(world, layout); });
    } catch (const std::exception& error) {
      problem = error.what();
    }
    CHECK(problem == "");
  }
}

TEST_CASE("sharded parameters are built without any rank ever holding more than one unit in full") {
  CountingAllocator counting;
  for (const std::string name : {"zero3", "fsdp"}) {
    const Layout layout{.parallel = {.strategy = name}, .mesh = {.data = 4}};
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
