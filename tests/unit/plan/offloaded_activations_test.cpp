// SPDX-License-Identifier: MIT
// Planned memory of recomputed layers that keep attention's outputs, on the device or on the host.
#include "lib/plan/rank_planner.h"
#include "tessera/models/language_model.h"
#include "tests/support/sized.h"
#include "tests/support/test.hpp"

using namespace tessera;
using namespace tessera::testing;

namespace {

constexpr int64_t kHidden = 256, kHeads = 4, kTokens = 4096, kLayers = 8;
constexpr double kRow = kTokens * kHidden * 2, kSums = kTokens * kHeads * 4;

struct Planned {
  Activations activations;
  StateMemory state;
};

Planned planned(const ParallelConfig& parallel, bool equal_passes, int64_t inner = 512,
                int64_t length = kTokens, int context = 1) {
  PlannedLayout layout{.parallel = parallel,
                       .mesh = {.context = context},
                       .model = causal(sized("llama", {.vocabulary = 64,
                                                       .hidden = kHidden,
                                                       .heads = kHeads,
                                                       .layers = kLayers,
                                                       .inner = inner,
                                                       .head_dim = 64})),
                       .on_gpu = true};
  layout.parallel.strategy = context > 1 ? "ddp" : "single";
  layout.parallel.gradient_checkpointing = true;
  layout.parallel.precision.parameter = at::kBFloat16;
  if (equal_passes) layout = with_passes(layout);
  RankPlanner rank(layout, {});
  Planned made{.activations = rank.step({.rows = 1, .length = length})};
  made.state = rank.state();
  return made;
}

}  // namespace

TEST_CASE("kept attention outputs take their bytes, and offloaded activations leave") {
  for (const bool equal : {false, true}) {
    INFO("equal passes: " << equal);
    ParallelConfig parallel;
    const Planned plain = planned(parallel, equal);
    parallel.save_attention_outputs = true;
    const Planned kept = planned(parallel, equal);
    parallel = {};
    parallel.offload.activations = true;
    const Planned offloaded = planned(parallel, equal);
    // The last layer runs backward where the peak lies, and forms its own either way.
    const double more = kept.activations.total() - plain.activations.total();
    CHECK(more >= (kLayers - 1) * (kRow + kSums));
    CHECK(more <= kLayers * (kRow + kSums));
    // The last layer's stay; another's input and attention's output come back beside them.
    const double less = plain.activations.total() - offloaded.activations.total();
    CHECK(less >= (kLayers - 4) * kRow);
    CHECK(less <= kLayers * kRow);
    CHECK(plain.state.host_bytes == 0);
    CHECK(kept.state.host_bytes == 0);
    CHECK(offloaded.state.host_bytes == (kLayers - 1) * (2 * kRow + kSums));
    CHECK(offloaded.state.host_state_bytes == 0);
  }
}

TEST_CASE("ranks that share rows keep a share of attention's output, by heads and by keys") {
  constexpr int kRanks = 2;
  for (const ContextAttention way : {ContextAttention::kHeads, ContextAttention::kKeys}) {
    INFO("heads: " << (way == ContextAttention::kHeads));
    ParallelConfig parallel;
    parallel.context_attention = way;
    parallel.offload.activations = true;
    const Planned shared = planned(parallel, true, 512, kTokens, kRanks);
    CHECK(shared.state.host_bytes == (kLayers - 1) * (2 * kRow + kSums) / kRanks);
  }
}

TEST_CASE("equal passes count what every pass counts") {
  for (const bool offload : {false, true}) {
    ParallelConfig parallel;
    parallel.save_attention_outputs = !offload;
    parallel.offload.activations = offload;
    const Planned each = planned(parallel, false), equal = planned(parallel, true);
    CHECK(each.activations.total() == equal.activations.total());
    CHECK(each.state.host_bytes == equal.state.host_bytes);
  }
}

TEST_CASE("long rows never hold the inner activations of all tokens") {
  constexpr int64_t kInner = 8192, kLong = 131072;
  const double inner = 2.0 * kInner * kLong * 2;  // gate and up: 4 GiB
  const Planned row = planned({.offload = {.activations = true}}, true, kInner, kLong);
  CHECK(row.activations.total() < inner);
}
