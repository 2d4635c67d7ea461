// SPDX-License-Identifier: MIT
// Modules that communicate with other ranks in forward; ranks are threads of one process.
#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <torch/nn/cloneable.h>

#include "tessera/model/adapters.h"
#include "tests/support/ranks.hpp"
#include "tests/support/test.hpp"
#include "tests/support/watchdog.hpp"

using namespace tessera;

namespace {

// Draws before and after a collective.
struct Talking : torch::nn::Module {
  explicit Talking(Communicator* comm) : comm_(comm) {}
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor first = x + at::rand_like(x);
    if (comm_ != nullptr) {
      const at::Tensor sum = at::ones({1});
      comm_->all_reduce(sum).wait();
      test::require(sum.item<float>() == static_cast<float>(comm_->size()), "the sum");
    }
    return first + at::rand_like(x);
  }
  Communicator* comm_;
};

at::Tensor sum_of(const at::Tensor& output, const MicroBatch&) { return output.sum(); }

at::Tensor forward_of(Communicator* comm, uint64_t seed) {
  const auto model = from_module([comm] { return std::make_shared<Talking>(comm); }, sum_of);
  const auto block = model.blocks[0].build({});
  const MicroBatch batch = make_micro_batch(at::ones({64, 3}), {});
  return block->forward({}, batch, {.seed = seed, .training = true});
}

}  // namespace

TEST_CASE("a module's forward may wait for ranks of its process, and draws as it would alone") {
  const test::Watchdog watchdog("a collective inside a module's forward", std::chrono::seconds(20));
  const at::Tensor state = at::detail::getDefaultCPUGenerator().get_state();
  test::run_ranks(3, [](Communicator& world) {
    for (uint64_t pass = 0; pass < 20; ++pass) {
      const uint64_t seed = 3 * pass + static_cast<uint64_t>(world.rank());
      test::require_bit_equal(forward_of(&world, seed), forward_of(nullptr, seed),
                              concat("pass ", pass));
    }
  });
  CHECK(at::equal(at::detail::getDefaultCPUGenerator().get_state(), state));
}
