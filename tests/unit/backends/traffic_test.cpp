// Bytes sent per step against the formulas of docs/strategies.md.
#include <ATen/ATen.h>

#include "tessera/backends/parallel_config.h"
#include "tessera/optim/adamw.h"
#include "tests/support/ranks.hpp"
#include "tests/support/test.hpp"
#include "tests/support/toy_models.h"

using namespace tessera;
using namespace tessera::testing;

namespace {

const ToyConfig kConfig{.vocabulary = 256, .hidden = 128, .layers = 5};
constexpr double kLayer = 4.0 * 128 * 128, kEmbedding = 2.0 * 128 * 128;
constexpr double kParameters = kEmbedding + 5 * kLayer;

// Bytes one rank sends in its second step, by hand: forward, backward, update, and the gathers that
// follow.
double sent_in_a_step(Communicator& comm, const ParallelConfig& config, int accumulation) {
  DeviceMesh mesh(comm, {.data = comm.size()});
  auto strategy = make_strategy(config, mesh);
  strategy->attach(toy_language_model(kConfig), {}, make_adamw({}));
  const std::vector<MicroBatch> batches(static_cast<size_t>(accumulation),
                                        toy_micro_batch(kConfig, 1, 2, 1));
  auto step = [&] {
    strategy->forward_backward(batches);
    strategy->optimizer_step(1e-3);
  };
  step();
  const int64_t before = mesh.axis(Axis::kData).bytes_sent();
  step();
  return static_cast<double>(mesh.axis(Axis::kData).bytes_sent() - before);
}

}  // namespace

TEST_CASE("bytes sent per step follow the formulas") {
  for (int ranks : {1, 2, 4}) {
    for (int accumulation : {1, 3}) {
      test::run_ranks(ranks, [&](Communicator& comm) {
        const double share = (comm.size() - 1.0) / comm.size();
        const double a = accumulation, e = 4;
        auto expect = [&](const ParallelConfig& config, double bytes) {
          const double sent = sent_in_a_step(comm, config, accumulation);
          test::require(std::abs(sent - bytes) <= 0.03 * bytes + 100, config.strategy, " on ",
                        comm.size(), " ranks sent ", sent, " bytes, the formula says ", bytes);
        };
        expect({.strategy = "ddp"}, 2 * e * kParameters * share);
        expect({.strategy = "zero1"}, 2 * e * kParameters * share);
        expect({.strategy = "zero2"}, (a + 1) * e * kParameters * share);
        expect({.strategy = "zero2", .reduce_at_boundary = true}, 2 * e * kParameters * share);
        // The head keeps the tied embedding between forward and backward, and so does the last
        // layer: forward's last gathers serve backward. Before the next micro-batch the embedding
        // and the first layers are still there.
        const double gathers = a * (2 * kParameters) * e * share;
        const double saved_most = a * 2 * (2 * kLayer + kEmbedding) * e * share;
        const double sent = sent_in_a_step(
            comm, {.strategy = "zero3", .persistence_threshold = 1000}, accumulation);
        const double reductions = a * e * kParameters * share;
        test::require(sent <= 1.03 * (gathers + reductions) + 100 &&
                          sent >= 0.97 * (gathers - saved_most + reductions) - 100,
                      "zero3 sent ", sent, " bytes, the formula says at most ",
                      gathers + reductions);
      });
    }
  }
}
