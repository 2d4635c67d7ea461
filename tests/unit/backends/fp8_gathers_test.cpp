// SPDX-License-Identifier: MIT
// Steps whose gathers carry codes (ParallelConfig::fp8_all_gather), against those whose gathers
// carry values, bit for bit.
#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "backends/check_config.h"
#include "lib/testing/player.h"
#include "tessera/comm/communication_ledger.h"
#include "tessera/model/lora.h"
#include "tessera/optim/muon.h"
#include "tests/support/fused_layers.h"
#include "tests/support/messages.hpp"
#include "tests/support/ranks.hpp"
#include "tests/support/sized.h"
#include "tests/support/test.hpp"
#include "tests/support/toy_models.h"

using namespace tessera;
using namespace tessera::testing;
using tessera::test::contains;
using tessera::test::require;

namespace {

constexpr int64_t kGatherWords = 31;

ModelSpec decoder_of(const std::string& family, int64_t layers = 3, int64_t key_heads = 4) {
  return causal(sized(family, {.vocabulary = kGatherWords,
                               .hidden = 16,
                               .heads = 4,
                               .layers = layers,
                               .key_heads = key_heads,
                               .initializer_range = 0.3,
                               .dropout = 0}));
}

// Matrices of which the first half is 2^14 times smaller than the other.
class UnevenMatrices final : public TensorSource {
 public:
  bool has(const std::string& name) const override { return !name.starts_with("lm_head"); }
  at::Tensor read(const std::string& name, at::IntArrayRef shape) const override {
    const int64_t numel = c10::multiply_integers(shape);
    const auto shift = static_cast<double>(std::hash<std::string>()(name) % 7);
    at::Tensor value = (at::arange(numel, at::kDouble) * 0.7 + shift).sin().to(at::kFloat) * 0.3;
    const bool is_matrix = shape.size() == 2 && numel != kGatherWords * 16;  // not the embedding
    if (is_matrix) value.narrow(0, 0, numel / 2).mul_(0x1p-14);
    return value.view(shape);
  }
};

ParallelConfig tensorwise(const std::string& strategy, at::ScalarType dtype = at::kFloat) {
  ParallelConfig config{.strategy = strategy};
  if (strategy == "zero3") config.persistence_threshold = 100;
  config.precision.parameter = dtype;
  config.precision.fp8 = Fp8::kTensorwise;
  return config;
}

std::vector<MicroBatch> words_of(int step, int rank, size_t count = 2) {
  std::vector<MicroBatch> all;
  for (size_t m = 0; m < count; ++m) {
    const auto seed = static_cast<uint64_t>(100 * step + 10 * rank) + m;
    all.push_back(toy_micro_batch({.vocabulary = kGatherWords}, 2, 6, seed));
  }
  return all;
}

struct GatherRun {
  std::vector<double> losses, evaluations;
  Named final;
};

// Three steps, with an evaluation between gradients and update, and one after it.
GatherRun run_of(Setup setup) {
  static const UnevenMatrices uneven;
  if (setup.source == nullptr) setup.source = &uneven;
  GatherRun result;
  play(setup, [&](Player& player) {
    std::vector<double> losses, evaluations;
    for (int step = 0; step < 3; ++step) {
      const int data = player.data_rank();
      losses.push_back(player.forward_backward(words_of(step, data)).loss);
      evaluations.push_back(player.evaluate(words_of(50, data, 1)).loss);
      player.strategy().optimizer_step(0.02);
      evaluations.push_back(player.evaluate(words_of(51, data, 1)).loss);
    }
    const Named values = parameters_of(player.strategy());
    if (player.rank() == 0) result = {losses, evaluations, values};
  });
  return result;
}

std::string difference(const GatherRun& a, const GatherRun& b, double tolerance) {
  std::string text = testing::difference(a.losses, b.losses, tolerance);
  if (text.empty()) text = testing::difference(a.evaluations, b.evaluations, tolerance);
  if (text.empty()) text = testing::difference(a.final, b.final, tolerance);
  return text;
}

// Sums that differ in their last bit move a few numbers to the next code; each is 1e-4.
constexpr double kTolerance = 1e-3;

// Gathers of values and of codes, and ddp, which gathers nothing.
void check_gathers(Setup setup, const std::string& what, double of_ddp = kTolerance) {
  INFO(what << ", strategy " << setup.parallel.strategy << ", dtype "
            << setup.parallel.precision.parameter);
  const GatherRun codes = run_of(setup);
  CHECK(std::ranges::all_of(codes.losses, [](double loss) { return std::isfinite(loss); }));
  setup.parallel.fp8_all_gather = false;
  const GatherRun values = run_of(setup);
  CHECK(difference(codes, values, 0) == "");
  if (of_ddp == 0) return;
  ParallelConfig ddp = tensorwise("ddp", setup.parallel.precision.parameter);
  ddp.precision = setup.parallel.precision;
  setup.parallel = ddp;
  CHECK(difference(codes, run_of(setup), of_ddp) == "");
}

}  // namespace

TEST_CASE("steps with gathers of codes are those with gathers of values, bit for bit") {
  for (const std::string strategy : {"zero3", "fsdp"}) {
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      for (const int ranks : {2, 4}) {
        for (const std::string family : {"llama", "gpt2"}) {
          const double of_ddp = dtype == at::kFloat ? kTolerance : 0;  // bf16 rounds its sums
          check_gathers({decoder_of(family), {.data = ranks}, tensorwise(strategy, dtype)}, family,
                        of_ddp);
        }
      }
    }
  }
}

TEST_CASE("gathers of codes beside other choices") {
  using Set = std::function<void(ParallelConfig&)>;
  const ModelSpec llama = decoder_of("llama");
  for (const std::string strategy : {"zero3", "fsdp"}) {
    const auto check = [&](const std::string& what, const MeshExtents& mesh, const Set& set) {
      ParallelConfig config = tensorwise(strategy);
      set(config);
      check_gathers({llama, mesh, config}, what);
    };
    const MeshExtents two{.data = 2};
    check("recomputation", two, [](ParallelConfig& c) { c.gradient_checkpointing = true; });
    check("some layers", two, [](ParallelConfig& c) { c.precision.fp8_layers = "o,up"; });
    check("large messages", two, [](ParallelConfig& c) { c.coalesce_bytes = 30'000; });
    check("no overlap", two, [](ParallelConfig& c) { c.overlap = false; });
    check("two blocks ahead", two, [](ParallelConfig& c) { c.prefetch_blocks = 2; });
    check("a tensor axis", {.data = 2, .tensor = 2}, [](ParallelConfig&) {});
    check("stages", {.pipeline = 2, .data = 2}, [](ParallelConfig&) {});
  }
  const auto fsdp = [&](const std::string& what, int ranks, const Set& set) {
    ParallelConfig config = tensorwise("fsdp");
    set(config);
    check_gathers({llama, {.data = ranks}, config}, what, ranks == 2 ? kTolerance : 0);
  };
  fsdp("no resharding", 2, [](ParallelConfig& c) { c.reshard_after_forward = false; });
  fsdp("units of some blocks", 2, [](ParallelConfig& c) { c.unit_numel = 3000; });
  fsdp("replicas", 4, [](ParallelConfig& c) { c.shard_ranks = 2; });
  fsdp("reduction at the boundary", 2, [](ParallelConfig& c) { c.reduce_at_boundary = true; });
  ParallelConfig persistent = tensorwise("zero3");
  persistent.persistence_threshold = 200;  // queries have 256 numbers, keys 128
  check_gathers({decoder_of("llama", 3, /*key_heads=*/2), {.data = 2}, persistent},
                "keys stay in full");
  Setup muon{llama, {.data = 2}, tensorwise("zero3")};
  muon.optimizer = make_muon({}, make_adamw({}));
  check_gathers(muon, "whole matrices", 0);
  muon.parallel = tensorwise("fsdp");
  check_gathers(muon, "whole matrices", 0);
  check_gathers({with_fused_layers(llama), {.data = 2}, tensorwise("zero3")}, "fused layers");
}

TEST_CASE("gathers of codes carry a byte a number, and evaluations carry values") {
  const auto sent = [](const std::string& strategy, bool codes) {
    std::pair<int64_t, int64_t> bytes;  // of a step with its update, and of an evaluation
    int64_t matrices = 0;
    ParallelConfig config = tensorwise(strategy, at::kBFloat16);
    config.fp8_all_gather = codes;
    // Each block is gathered twice, once for forward and once for backward, but for the last ones.
    config.prefetch_blocks = 0;
    play({decoder_of("llama", 4), {.data = 2}, config}, [&](Player& player) {
      Strategy& of = player.strategy();
      for (const auto& [name, value] : parameters_of(of)) {
        if (player.rank() == 0 && name.ends_with("proj.weight")) matrices += value.numel();
      }
      const auto bytes_of = [&](const std::function<void()>& call) {
        const int64_t before = player.bytes_sent();
        call();
        return player.bytes_sent() - before;
      };
      const auto step = [&] {
        player.forward_backward(words_of(0, player.data_rank(), 1));
        of.optimizer_step(0.01);
      };
      step();
      const int64_t of_step = bytes_of(step);
      player.evaluate(words_of(0, player.data_rank(), 1));
      const int64_t of_evaluation =
          bytes_of([&] { player.evaluate(words_of(0, player.data_rank(), 1)); });
      if (player.rank() == 0) bytes = {of_step, of_evaluation};
    });
    return std::tuple(bytes.first, bytes.second, matrices);
  };
  for (const std::string strategy : {"zero3", "fsdp"}) {
    INFO(strategy);
    const auto [step8, evaluation8, matrices] = sent(strategy, true);
    const auto [step16, evaluation16, same] = sent(strategy, false);
    REQUIRE(matrices > 0);
    CHECK(evaluation8 == evaluation16);
    // A rank of two sends half of what it gathers. Of four layers the last one's buffer serves
    // forward and backward: seven gathers of a quarter. 16 scales of 4 bytes go to one rank.
    const int64_t padding = 4 * 16 * 128;
    const int64_t least = matrices * 7 / 4 / 2 - 16 * 4;
    INFO(step16 << " bytes in 16 bits, " << step8 << " in 8, of " << matrices << " numbers");
    CHECK(step16 - step8 >= least);
    CHECK(step16 - step8 <= least + padding);
  }
}

TEST_CASE("frozen layers that are stored as codes beside trained ones that are gathered as codes") {
  ModelSpec model = decoder_of("llama");
  for (BlockBuilder& builder : model.blocks) {
    if (builder.name != "layers.1") continue;
    builder.build = [build = builder.build](const BuildContext& context) {
      std::unique_ptr<Block> block = build(context);
      for (const Parameter& p : block->parameters()) p.tensor.set_requires_grad(false);
      return block;
    };
  }
  for (const std::string layers : {"all", "qkv,down"}) {
    for (const std::string strategy : {"zero3", "fsdp"}) {
      ParallelConfig config = tensorwise(strategy);
      config.precision.frozen = FrozenDtype::kFp8;
      config.precision.fp8_layers = layers;
      check_gathers({model, {.data = 2}, config}, "frozen layers, fp8_layers " + layers);
    }
  }
}

TEST_CASE("gathers stay in the compute dtype where codes are not gathered, and it is said") {
  const auto why = [](const ParallelConfig& config, const MeshExtents& mesh) {
    std::string text;
    for (const IdleSetting& idle : idle_settings(config, mesh)) {
      if (idle.name == "fp8_all_gather") text = idle.why;
    }
    return text;
  };
  ParallelConfig config = tensorwise("zero3");
  config.fp8_all_gather = false;
  CHECK(why(config, {.data = 2}) == "");
  CHECK(sharding_rules(config, {.data = 2}).coded_layers.any() == false);
  config.fp8_all_gather = true;
  CHECK(why(config, {.data = 2}) == "");
  config.precision.fp8_layers = "qkv,down";
  CHECK(name_of(sharding_rules(config, {.data = 2}).coded_layers) == "qkv,down");
  const auto check_off = [&](const char* reason, const MeshExtents& mesh,
                             const std::function<void(ParallelConfig&)>& set) {
    ParallelConfig other = tensorwise("zero3");
    set(other);
    INFO(reason);
    CHECK(!sharding_rules(other, mesh).coded_layers.any());
    CHECK(why(other, mesh) == "");
    other.fp8_all_gather = false;
    CHECK_THAT(why(other, mesh), contains(reason));
  };
  check_off("nothing is gathered", {}, [](ParallelConfig&) {});
  check_off("no product is in 8 bits", {.data = 2},
            [](ParallelConfig& c) { c.precision.fp8 = Fp8::kOff; });
  check_off("scale a row", {.data = 2}, [](ParallelConfig& c) { c.precision.fp8 = Fp8::kRowwise; });
  check_off("belongs to zero3 and fsdp", {.data = 2},
            [](ParallelConfig& c) { c.strategy = "zero2"; });
  for (const Offload what : {Offload::kOptimizer, Offload::kOptimizerAndParameters}) {
    check_off("offloaded", {.data = 2}, [&](ParallelConfig& c) { c.offload.what = what; });
    ParallelConfig offloaded = tensorwise("zero3");
    offloaded.offload.what = what;
    check_gathers({decoder_of("llama"), {.data = 2}, offloaded}, "offload");
  }
}
