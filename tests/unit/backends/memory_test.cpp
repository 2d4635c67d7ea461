// What each strategy holds per rank, counted by the allocator, against the formulas of
// docs/strategies.md.
#include <ATen/ATen.h>

#include "tessera/backends/parallel_config.h"
#include "tessera/core/error.h"
#include "tessera/optim/adamw.h"
#include "tests/support/counting_allocator.h"
#include "tests/support/ranks.hpp"
#include "tests/support/test.hpp"
#include "tests/support/toy_models.h"

using namespace tessera;
using namespace tessera::testing;

namespace {

// Large enough that a few scalars do not matter: 6 layers of 8 h^2, embedding 2 h^2.
const ToyConfig kConfig{.vocabulary = 512, .hidden = 256, .layers = 6};
constexpr double kParameters = 2.0 * 256 * 256 + 6 * 4.0 * 256 * 256;
constexpr double kLayer = 4.0 * 256 * 256;
constexpr double kEmbedding = 2.0 * 256 * 256;

struct Measured {
  StrategyMemory reported;
  int64_t live_after_attach, peak_of_attach, live_after_step;
};

Measured measure(Communicator& comm, const std::string& name, at::ScalarType dtype) {
  const int64_t begin = CountingAllocator::live_bytes();
  CountingAllocator::reset_peak();
  DeviceMesh mesh(comm, {.data = comm.size()});
  ParallelConfig config{.strategy = name};
  config.precision.parameter = dtype;
  config.persistence_threshold = 1000;
  auto strategy = make_strategy(config, mesh);
  strategy->attach(toy_language_model(kConfig), {}, make_adamw({}));
  Measured measured;
  measured.live_after_attach = CountingAllocator::live_bytes() - begin;
  measured.peak_of_attach = CountingAllocator::peak_bytes() - begin;
  {
    const std::vector<MicroBatch> batch{toy_micro_batch(kConfig, 1, 2, 1)};
    for (int step = 0; step < 2; ++step) {
      strategy->forward_backward(batch);
      strategy->grad_norm_squared();
      strategy->optimizer_step(1e-3);
    }
  }
  measured.live_after_step = CountingAllocator::live_bytes() - begin;
  measured.reported = strategy->memory();
  return measured;
}

void require_close(const std::string& what, double actual, double expected, double tolerance) {
  test::require(std::abs(actual - expected) <= tolerance * expected, what, " is ", actual,
                " bytes, the formula says ", expected);
}

}  // namespace

TEST_CASE("per-rank memory follows the formula, by the strategy's account and by the allocator's") {
  CountingAllocator counting;
  for (int ranks : {1, 2, 4}) {
    for (auto dtype : {at::kFloat, at::kBFloat16}) {
      for (const std::string name : {"ddp", "zero1", "zero2", "zero3"}) {
        INFO(name << " on " << ranks << " ranks in " << dtype);
        test::run_ranks(ranks, [&](Communicator& comm) {
          const double n = comm.size();
          const double element = dtype == at::kFloat ? 4 : 2;
          const double parameters = kParameters * element / (name == "zero3" ? n : 1);
          const double gradients =
              kParameters * element / (name == "zero2" || name == "zero3" ? n : 1);
          // Two moments, and the master weights in 16-bit training.
          const double optimizer =
              kParameters * (dtype == at::kFloat ? 8 : 12) / (name == "ddp" ? 1 : n);
          // In flight: two blocks' gradients and the tied embedding's; for ZeRO-3 parameters as
          // well.
          const double in_flight = (2 * kLayer + kEmbedding) * element;
          const double buffers = name == "zero3" ? 2 * in_flight : name == "zero2" ? in_flight : 0;

          const Measured measured = measure(comm, name, dtype);
          const StrategyMemory& memory = measured.reported;
          require_close("parameter_bytes", double(memory.parameter_bytes), parameters, 0.05);
          require_close("gradient_bytes", double(memory.gradient_bytes), gradients, 0.05);
          require_close("optimizer_bytes", double(memory.optimizer_bytes), optimizer, 0.05);
          if (buffers == 0) {
            test::require(memory.buffer_bytes == 0, name, " needs no buffers");
          } else {
            require_close("buffer_bytes", double(memory.buffer_bytes), buffers, 0.05);
          }
          const double total = parameters + gradients + optimizer + buffers;
          require_close("allocated after attach", double(measured.live_after_attach), total, 0.05);
          require_close("allocated after a step", double(measured.live_after_step), total, 0.05);
        });
      }
    }
  }
}

TEST_CASE("ZeRO-3 builds the model without any rank ever holding more than one block in full") {
  CountingAllocator counting;
  test::run_ranks(4, [&](Communicator& comm) {
    const Measured measured = measure(comm, "zero3", at::kFloat);
    // A block as built and its flat copy, besides what stays.
    const double limit = double(measured.live_after_attach) + 2.2 * 4 * kLayer;
    test::require(double(measured.peak_of_attach) <= limit, "peak while building is ",
                  measured.peak_of_attach, ", limit ", limit);
    test::require(double(measured.peak_of_attach) < 4 * 4 * kParameters,
                  "less than parameters, gradients and moments in full");
  });
}
