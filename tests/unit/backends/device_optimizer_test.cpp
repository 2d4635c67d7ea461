// SPDX-License-Identifier: MIT
// Pieces in which a step updates device parameters.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "lib/testing/player.h"
#include "tests/support/ranks.hpp"
#include "tests/support/test.hpp"
#include "tests/support/toy_models.h"

using namespace tessera;
using namespace tessera::testing;

namespace {

using Calls = std::vector<std::pair<size_t, size_t>>;  // first range and number of ranges

// Adds 1 to every parameter and records the calls.
class Counting : public Optimizer {
 public:
  Counting(std::vector<OptimizerRange> ranges, Calls& calls) : ranges_(ranges), calls_(calls) {}
  size_t range_count() const override { return ranges_.size(); }
  void begin_step(const StepScalars&) override { calls_.clear(); }
  void update(size_t first, size_t count) override {
    calls_.emplace_back(first, count);
    for (size_t i = first; i < first + count; ++i) ranges_.at(i).parameter.add_(1);
  }
  void update(std::span<const ExternalRange>) const override {}
  std::vector<std::string> state_names() const override { return {}; }
  NamedTensors state(size_t) const override { return {}; }
  at::Tensor step_count() const override { return at::zeros({}); }
  int64_t state_bytes() const override { return 0; }

 private:
  std::vector<OptimizerRange> ranges_;
  Calls& calls_;
};

// Calls of the second of two steps. Checks on all ranks that every parameter has grown by 2.
Calls calls_of_step(const std::string& strategy, int ranks) {
  const ToyConfig model{.vocabulary = 32, .hidden = 16, .layers = 4};
  Calls calls_of_first;
  test::run_ranks(ranks, [&](Communicator& comm) {
    Calls calls;
    const auto counting = [&](const std::vector<OptimizerRange>& ranges) {
      return std::make_unique<Counting>(ranges, calls);
    };
    const Player player(
        comm, {toy_language_model(model), {.data = ranks}, {.strategy = strategy}, counting});
    Strategy& trained = player.strategy();
    std::vector<at::Tensor> before;
    trained.visit_parameters([&](const VisitedParameter& p) { before.push_back(p.value.clone()); });
    for (int i = 0; i < 2; ++i) {
      trained.forward_backward(std::vector{toy_micro_batch(model, 1, 2, 1)});
      at::NoGradGuard no_grad;
      trained.optimizer_step(1e-3);
    }
    size_t at = 0;
    trained.visit_parameters([&](const VisitedParameter& p) {
      test::require(p.value.allclose(before.at(at++) + 2), p.name, " was not updated once a step");
    });
    if (comm.rank() == 0) calls_of_first = calls;
  });
  return calls_of_first;
}

}  // namespace

TEST_CASE("a rank that keeps every parameter updates all at once, others unit by unit") {
  for (const auto& [strategy, ranks] :
       {std::pair{"ddp", 1}, {"ddp", 2}, {"fsdp", 1}, {"zero1", 1}}) {
    INFO(strategy << " on " << ranks);
    const Calls calls = calls_of_step(strategy, ranks);
    REQUIRE(calls.size() == 1);
    CHECK(calls.front().first == 0);
    CHECK(calls.front().second > 4);
  }
  for (const char* strategy : {"zero1", "zero2", "fsdp"}) {
    INFO(strategy);
    size_t next = 0;
    const Calls calls = calls_of_step(strategy, 2);
    for (const auto& [first, count] : calls) {
      CHECK(first == next);
      next = first + count;
    }
    CHECK(calls.size() >= 5);  // layers and embedding
  }
}
