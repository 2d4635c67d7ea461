// SPDX-License-Identifier: MIT
// Choice of recomputed blocks so that activations stay within a limit.
#include "lib/plan/recomputation.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <bit>

#include "lib/core/units.h"
#include "lib/plan/equal_passes.h"
#include "lib/plan/rank_planner.h"
#include "lib/testing/player.h"
#include "tessera/core/error.h"
#include "tessera/models/language_model.h"
#include "tests/support/counting_allocator.h"
#include "tests/support/fused_layers.h"
#include "tests/support/ranks.hpp"
#include "tests/support/sized.h"
#include "tests/support/test.hpp"

using namespace tessera;
using namespace tessera::testing;

namespace {

struct Case {
  std::string name;
  ParallelConfig parallel;
  MeshExtents mesh;
  int64_t accumulation = 1;
};

constexpr int64_t kRows = 3, kLength = 96;

ModelSpec model_of(int64_t layers, int64_t vocabulary = 256) {
  return causal(sized(
      {.inner = 384, .key_heads = 2, .head_dim = 32},
      sized("llama", {.vocabulary = vocabulary, .hidden = 128, .heads = 4, .layers = layers})));
}

MicroBatch micro_batch() {
  const at::Tensor ids = at::arange(kRows * kLength).remainder_(251).view({kRows, kLength});
  return make_micro_batch(ids, ids.clone());
}

PlannedLayout layout_of(const Case& c, const ModelSpec& model) {
  return with_passes(
      {.parallel = c.parallel, .mesh = c.mesh, .accumulation = c.accumulation, .model = model});
}

// bytes: limit of activations, beside the reserve.
std::vector<StageRecomputation> chosen(const PlannedLayout& layout, double bytes) {
  return choose_recomputation(layout, shape_of(micro_batch()), card_named("cpu"),
                              {.bytes = bytes / (1 - kActivationReserve)});
}

ParallelConfig staged(const char* schedule, const std::string& strategy = "ddp") {
  ParallelConfig config{.strategy = strategy};
  config.pipeline = {.schedule = schedule, .chunks = *schedule == 'i' ? 2 : 1};
  return config;
}

std::vector<Case> cases() {
  ParallelConfig shared = staged("1f1b");
  shared.pipeline.shared_vocabulary = true;
  return {{"single", {}, {}},
          {"single, kept activations", {.save_norm_outputs = true}, {}},
          {"accumulated", {}, {}, 3},
          {"ddp", {.strategy = "ddp"}, {.data = 2}, 2},
          {"zero3", {.strategy = "zero3", .persistence_threshold = 1000}, {.data = 2}, 2},
          {"fsdp", {.strategy = "fsdp"}, {.data = 2}},
          {"1f1b", staged("1f1b"), {.pipeline = 2}, 4},
          {"gpipe", staged("gpipe"), {.pipeline = 2}, 4},
          {"interleaved", staged("interleaved"), {.pipeline = 2}, 4},
          {"shared vocabulary", shared, {.pipeline = 2}, 4},
          {"tensor", {.strategy = "ddp"}, {.tensor = 2}},
          {"1f1b of zero3", staged("1f1b", "zero3"), {.pipeline = 2, .data = 2}, 4}};
}

// Peaks with everything saved and with the least, of the stage with the largest difference.
struct Range {
  double least = 0, most = 0;
};
Range range_of(const PlannedLayout& layout) {
  Range range;
  for (const StageRecomputation& stage : chosen(layout, 1)) {
    range.least = std::max(range.least, stage.held());
  }
  for (const StageRecomputation& stage : chosen(layout, 1e18)) {
    range.most = std::max(range.most, stage.held());
  }
  ++range.least;  // sums differ in their last bits
  ++range.most;
  return range;
}

// By stage: the peak of its activations with these blocks.
std::vector<Activations> peaks_of(PlannedLayout layout, const std::vector<int64_t>& blocks) {
  layout.parallel.recomputed_blocks = blocks;
  std::vector<Activations> peaks;
  for (int stage = 0; stage < layout.mesh.pipeline; ++stage) {
    peaks.push_back(RankPlanner(layout, {.pipeline = stage}).step(shape_of(micro_batch())));
  }
  return peaks;
}

}  // namespace

TEST_CASE("no blocks run again where all fits, and what is chosen fits and is as few as can be") {
  for (const Case& c : cases()) {
    INFO(c.name);
    const PlannedLayout layout = layout_of(c, model_of(6));
    const Range range = range_of(layout);
    CHECK(blocks_of(chosen(layout, range.most)).empty());
    CHECK(range.least < 0.75 * range.most);
    std::vector<size_t> before;
    for (int part = 0; part <= 10; ++part) {
      const double limit = range.least + part * (range.most - range.least) / 10;
      INFO("limit " << limit);
      const std::vector<StageRecomputation> stages = chosen(layout, limit);
      const std::vector<Activations> peaks = peaks_of(layout, blocks_of(stages));
      std::vector<size_t> counts;
      for (size_t s = 0; s < stages.size(); ++s) {
        INFO("stage " << s);
        CHECK(stages[s].fits);
        CHECK(peaks[s].total() <= limit);
        CHECK(peaks[s].total() == stages[s].plan.activations.total());
        CHECK(stages[s].allowed == Approx(limit));
        CHECK(std::ssize(stages[s].blocks) <= stages[s].able);
        counts.push_back(stages[s].blocks.size());
        // More memory never causes more recomputation.
        if (!before.empty()) CHECK(counts[s] <= before[s]);
      }
      before = counts;
    }
  }
}

TEST_CASE("what does not fit is said with what least holds") {
  for (const Case& c : cases()) {
    INFO(c.name);
    const PlannedLayout layout = layout_of(c, model_of(6));
    const double least = range_of(layout).least;
    const auto fits = [](const std::vector<StageRecomputation>& stages) {
      return std::ranges::all_of(stages, &StageRecomputation::fits);
    };
    CHECK(fits(chosen(layout, least)));
    const std::vector<StageRecomputation> stages = chosen(layout, least - 2);
    CHECK(!fits(stages));
    const auto most = std::ranges::max_element(stages, {}, &StageRecomputation::held);
    CHECK(most->held() == Approx(least));
  }
}

TEST_CASE("no other choice of as many equal blocks has a lower peak, and the first come first") {
  for (const Case& c : cases()) {
    PlannedLayout layout = layout_of(c, model_of(c.mesh.pipeline > 1 ? 8 : 6));
    const auto stage_count = static_cast<size_t>(layout.mesh.pipeline);
    for (size_t s = 0; s < stage_count; ++s) {
      const auto peak_with = [&](const std::vector<int64_t>& blocks) {
        layout.parallel.recomputed_blocks = blocks;
        RankPlanner rank(layout, {.pipeline = static_cast<int>(s)});
        return rank.step(shape_of(micro_batch())).total();
      };
      std::vector<int64_t> layers;  // equal blocks
      for (const size_t block : own_blocks(layout, static_cast<int>(s))) {
        if (layout.model.blocks[block].cost.parameters == layout.model.blocks[1].cost.parameters) {
          layers.push_back(static_cast<int64_t>(block));
        }
      }
      std::vector<double> lowest(layers.size() + 1, 1e18);
      for (uint32_t set = 0; set < (1U << layers.size()); ++set) {
        std::vector<int64_t> blocks;
        for (size_t i = 0; i < layers.size(); ++i) {
          if ((set >> i & 1) != 0) blocks.push_back(layers[i]);
        }
        double& decode_state = lowest[blocks.size()];
        decode_state = std::min(decode_state, peak_with(blocks));
      }
      for (size_t count = 0; count <= layers.size(); ++count) {
        INFO(c.name << " stage " << s << ", " << count << " of " << layers.size() << " blocks");
        // A limit that just suffices for this many blocks chooses no more.
        const std::vector<StageRecomputation> stages = chosen(layout, lowest[count] + 1);
        CHECK(stages[s].fits);
        const auto is_layer = [&](int64_t block) { return std::ranges::count(layers, block) > 0; };
        CHECK(std::ranges::count_if(stages[s].blocks, is_layer) <= static_cast<ptrdiff_t>(count));
      }
      if (stage_count > 1) continue;
      // The last blocks instead cost one block's share more, while some are not recomputed.
      for (size_t count = 1; count < layers.size(); ++count) {
        const std::vector<int64_t> first(
            layers.begin(), layers.begin() + std::ssize(layers) - static_cast<ptrdiff_t>(count)),
            last(layers.begin() + static_cast<ptrdiff_t>(count), layers.end());
        INFO(c.name << ", " << first.size() << " of " << layers.size());
        CHECK(peak_with(first) <= lowest[first.size()]);
        CHECK(peak_with(last) > lowest[last.size()]);
      }
    }
  }
}

TEST_CASE("stages choose for themselves: the first holds more micro-batches than the last") {
  const Case c{"1f1b", staged("1f1b"), {.pipeline = 2}, 4};
  const PlannedLayout layout = layout_of(c, model_of(8));
  const std::vector<Activations> all = peaks_of(layout, {});
  CHECK(all[0].layers > all[1].layers);
  const std::vector<StageRecomputation> stages = chosen(layout, all[1].total());
  CHECK(!stages[0].blocks.empty());
  CHECK(stages[1].blocks.empty());
}

TEST_CASE("memory that is left after the state, less a reserve, is what activations may take") {
  for (const Case& c : cases()) {
    INFO(c.name);
    const PlannedLayout layout = layout_of(c, model_of(6));
    const Card card = card_named("cpu");
    const Range range = range_of(layout);
    const double half = (range.least + range.most) / 2;
    double state = 0;  // of the stage with most state
    for (int stage = 0; stage < layout.mesh.pipeline; ++stage) {
      state = std::max(state, RankPlanner(layout, {.pipeline = stage}).lasting().device_bytes());
    }
    const double memory = (state + half) / (1 - kMemoryReserve);
    const auto stages =
        choose_recomputation(layout, shape_of(micro_batch()), card, {.memory = memory});
    for (const StageRecomputation& stage : stages) {
      CHECK(stage.fits);
      CHECK(stage.plan.needed(card) <= (1 - kMemoryReserve) * memory);
      CHECK(stage.allowed ==
            Approx((1 - kMemoryReserve) * memory - stage.plan.state.device_bytes()));
    }
    CHECK(blocks_of(choose_recomputation(layout, shape_of(micro_batch()), card, {.memory = 1e15}))
              .empty());
  }
}

TEST_CASE("the operations that run again are those of the blocks") {
  const Case c{"single", {}, {}};
  PlannedLayout layout = layout_of(c, model_of(8));
  CHECK(recomputed_share(layout) == 0);
  layout.parallel.recomputed_blocks = {1, 2};
  CHECK(recomputed_share(layout) == Approx(0.25).margin(0.01));
  layout.parallel.recomputed_blocks.clear();
  layout.parallel.gradient_checkpointing = true;
  CHECK(recomputed_share(layout) == 1);
}

TEST_CASE("measured activations are those planned, within 3 %, and never more than asked for") {
  CountingAllocator counting;
  for (const Case& c : cases()) {
    const ModelSpec model =
        c.parallel.save_norm_outputs ? with_fused_layers(model_of(6)) : model_of(6);
    const PlannedLayout layout = layout_of(c, model);
    const Range range = range_of(layout);
    for (const double part : c.name == "single" ? std::vector{0.0, 0.8} : std::vector{0.4}) {
      const double limit = range.least + part * (range.most - range.least);
      const std::vector<StageRecomputation> stages = chosen(layout, limit);
      const double asked = limit / (1 - kActivationReserve);
      ParallelConfig parallel = c.parallel;
      parallel.recomputed_blocks = blocks_of(stages);
      const int ranks = rank_count(c.mesh);
      std::vector<double> measured(static_cast<size_t>(ranks));
      test::run_ranks(ranks, [&](Communicator& world) {
        const int64_t begin = CountingAllocator::live_bytes();
        const Player player(world, {model, c.mesh, parallel});
        Strategy& strategy = player.strategy();
        std::vector<MicroBatch> batches;
        for (int64_t m = 0; m < c.accumulation; ++m) batches.push_back(micro_batch());
        for (int step = 0; step < 2; ++step) {
          CountingAllocator::reset_peak();
          strategy.forward_backward(batches);
          strategy.grad_norm_squared();
          strategy.optimizer_step(1e-3);
        }
        const StrategyMemory memory = strategy.memory();
        const int64_t held = memory.parameter_bytes + memory.gradient_bytes +
                             memory.optimizer_bytes + memory.buffer_bytes;
        measured[static_cast<size_t>(world.rank())] =
            static_cast<double>(CountingAllocator::peak_bytes() - begin - held);
      });
      for (size_t rank = 0; rank < measured.size(); ++rank) {
        const StageRecomputation& stage =
            stages.at(rank / static_cast<size_t>(c.mesh.data * c.mesh.tensor));
        INFO(c.name << " rank " << rank << ", asked " << asked / kMiB << " MiB, "
                    << stage.blocks.size() << " of " << stage.able << " blocks, planned "
                    << stage.held() / kMiB << ", measured " << measured[rank] / kMiB << ", "
                    << 100 * (measured[rank] / stage.held() - 1) << " %");
        CHECK(std::abs(measured[rank] / stage.held() - 1) <= 0.03);
        CHECK(measured[rank] <= asked);
      }
    }
  }
}
