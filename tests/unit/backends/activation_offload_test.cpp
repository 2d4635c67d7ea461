// SPDX-License-Identifier: MIT
// Activations in host memory: what moves, and that it comes back to its place.
#include "backends/common/activation_offload.h"

#include <ATen/ATen.h>

#include "lib/testing/player.h"
#include "tessera/models/language_model.h"
#include "tests/support/fused_layers.h"
#include "tests/support/ranks.hpp"
#include "tests/support/sized.h"
#include "tests/support/test.hpp"
#include "tests/support/toy_models.h"

using namespace tessera;
using namespace tessera::testing;

namespace {

constexpr int64_t kSentLayers = 4, kSentHidden = 24, kSentHeads = 3, kSentTokens = 2 * 8;

ModelSpec recomputed_model() {
  return with_fused_layers(causal(sized("llama", {.vocabulary = 31,
                                                  .hidden = kSentHidden,
                                                  .heads = kSentHeads,
                                                  .layers = kSentLayers,
                                                  .inner = 40,
                                                  .key_heads = 1,
                                                  .head_dim = 8,
                                                  .initializer_range = 0.3})));
}

MicroBatch drawn_batch(uint64_t seed) {
  return toy_micro_batch({.vocabulary = 31}, 2, kSentTokens / 2, seed);
}

ParallelConfig offloading(const std::string& strategy, bool offload) {
  ParallelConfig config{.strategy = strategy, .gradient_checkpointing = true};
  config.offload.activations = offload;
  return config;
}

// Of a layer: its input, attention's output, and the log-sum-exp.
constexpr int64_t kSentLayerBytes = kSentTokens * (2 * kSentHidden + kSentHeads) * 4;

}  // namespace

TEST_CASE("tensors come back from the host with their values, shapes and flags") {
  ActivationOffload offload(at::kCPU, /*pin_memory=*/true);
  const auto one = offload.make(), two = offload.make();
  const at::Tensor a = at::randn({3, 5}).transpose(0, 1).requires_grad_(), b = at::randn({4, 2});
  const at::Tensor kept_a = a.detach().clone(), kept_b = b.clone();
  offload.send(*one, 0, a);
  offload.send(*two, 7, b);
  CHECK(offload.in_flight() == 2);
  offload.settle(1);
  CHECK(offload.in_flight() == 1);
  offload.settle(5);
  CHECK(offload.in_flight() == 0);
  at::Tensor(a).detach().zero_();
  at::Tensor(b).zero_();
  offload.fetch(*two);
  const auto back_b = offload.take(*two);
  const auto back_a = offload.take(*one);
  REQUIRE(back_a.size() == 1);
  REQUIRE(back_b.size() == 1);
  CHECK(back_a[0].first == 0);
  CHECK(back_b[0].first == 7);
  CHECK(back_a[0].second.equal(kept_a));
  CHECK(back_b[0].second.equal(kept_b));
  CHECK(back_a[0].second.strides() == a.strides());
  CHECK(back_a[0].second.requires_grad());
  CHECK_FALSE(back_b[0].second.requires_grad());
  CHECK_FALSE(ActivationOffload::is_movable(at::arange(3)));
  CHECK_FALSE(ActivationOffload::is_movable(at::Tensor()));
  CHECK(ActivationOffload::is_movable(b));
}

TEST_CASE("host buffers go round") {
  ActivationOffload offload(at::kCPU, /*pin_memory=*/true);
  StrategyMemory first;
  for (int step = 0; step < 3; ++step) {
    for (const int64_t rows : {1000, 500}) {
      const auto kept = offload.make();
      offload.send(*kept, 0, at::ones({rows, 3}));
      offload.settle(offload.in_flight());
      offload.take(*kept);
    }
    StrategyMemory memory;
    offload.add_memory(memory);
    if (step == 0) first = memory;
    CHECK(memory.host_activation_bytes == first.host_activation_bytes);
    CHECK(memory.host_bytes == first.host_bytes);
    CHECK(memory.pinned_bytes == 0);  // no GPU
  }
  CHECK(first.host_activation_bytes >= 1000 * 3 * 4);
  CHECK(first.host_activation_bytes < 1000 * 3 * 4 + 4096);
  // Longer rows take the place of shorter ones.
  const auto kept = offload.make();
  offload.send(*kept, 0, at::ones({3000, 3}));
  StrategyMemory longer;
  offload.add_memory(longer);
  CHECK(longer.host_activation_bytes < 3000 * 3 * 4 + 4096);
}

TEST_CASE("a step offloads what recomputed layers keep, but what backward reads first") {
  for (const int micro_batches : {1, 3}) {
    test::run_ranks(1, [&](Communicator& comm) {
      const Player player(comm, {recomputed_model(), {}, offloading("single", true)});
      std::vector<MicroBatch> batches;
      for (int m = 0; m < micro_batches; ++m) batches.push_back(drawn_batch(10 + m));
      player.strategy().forward_backward(batches);
      const OffloadReport report = player.strategy().offload_report();
      test::require(report.activation_bytes == micro_batches * (kSentLayers - 1) * kSentLayerBytes,
                    "sent ", report.activation_bytes);
      test::require(report.bytes_to_device == report.activation_bytes, "all of it comes back");
      const StrategyMemory memory = player.strategy().memory();
      test::require(
          memory.host_activation_bytes >= (kSentLayers - 1) * kSentLayerBytes &&
              memory.host_activation_bytes < (kSentLayers - 1) * (kSentLayerBytes + 3 * 4096),
          "one micro-batch's buffers serve all: ", memory.host_activation_bytes);
    });
  }
}
