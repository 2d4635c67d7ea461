// SPDX-License-Identifier: MIT
// Products in 8 bits in a strategy's passes: which have them, and what is refused.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <map>
#include <vector>

#include "lib/testing/player.h"
#include "tessera/core/error.h"
#include "tessera/model/lora.h"
#include "tests/support/messages.hpp"
#include "tests/support/ranks.hpp"
#include "tests/support/sized.h"
#include "tests/support/test.hpp"
#include "tests/support/toy_models.h"

using namespace tessera;
using namespace tessera::testing;
using tessera::test::contains;

namespace {

constexpr int64_t kWords = 31;

ModelSpec small_llama(int64_t layers = 2) {
  return causal(sized("llama", {.vocabulary = kWords,
                                .hidden = 16,
                                .heads = 4,
                                .layers = layers,
                                .initializer_range = 0.3}));
}

ParallelConfig config_of(const std::string& strategy, Fp8 fp8) {
  ParallelConfig config{.strategy = strategy};
  config.precision.fp8 = fp8;
  return config;
}

MicroBatch batch_of_words() { return toy_micro_batch({.vocabulary = kWords}, 2, 6, 5); }

struct Losses {
  double step, evaluation;
  double training_pass, pass;  // sums of scores
};

Losses losses(Fp8 fp8, const std::string& layers = "all") {
  Losses result{};
  ParallelConfig config = config_of("single", fp8);
  config.precision.fp8_layers = layers;
  play({small_llama(), {}, config}, [&](Player& player) {
    Strategy& strategy = player.strategy();
    const auto scores = [&](bool training) {
      const at::NoGradGuard no_grad;
      return strategy.forward(batch_of_words(), {.training = training}).sum().item<double>();
    };
    result.evaluation = strategy.evaluate(std::vector{batch_of_words()}).loss.item<double>();
    result.pass = scores(false);
    result.training_pass = scores(true);
    result.step = strategy.forward_backward(std::vector{batch_of_words()}).loss.item<double>();
  });
  return result;
}

std::string refusal_of(const MeshExtents& mesh, const ParallelConfig& config,
                       const ModelSpec& model) {
  return error_of(ErrorCode::kInvalidArgument, [&] {
    play({model, mesh, config}, [](Player&) {});
  });
}

ModelSpec with_adapters(ModelSpec model) {
  return add_lora(std::move(model), {.r = 2, .alpha = 8, .target_modules = {"all-linear"}});
}

ParallelConfig frozen_config(const std::string& strategy, FrozenDtype frozen) {
  ParallelConfig config{.strategy = strategy};
  config.precision.frozen = frozen;
  return config;
}

Named values_with(FrozenDtype frozen) {
  Named values;
  play({with_adapters(small_llama()), {}, frozen_config("single", frozen)},
       [&](Player& player) { values = parameters_of(player.strategy()); });
  return values;
}

// The nearest of e4m3's numbers times this scale, by arithmetic in fp64.
at::Tensor nearest(const at::Tensor& x, double scale) {
  const at::Tensor exact = x.to(at::kDouble);
  const at::Tensor exponent =
      std::get<1>(at::frexp(exact / scale)).sub(1).clamp_min(-6).to(at::kDouble);
  const at::Tensor step = at::exp2(exponent - 3) * scale;
  return (at::round(exact / step) * step).to(at::kFloat);
}

// The layer's weights by product.
const std::vector<std::vector<std::string>> kProducts = {
    {"self_attn.q_proj.weight", "self_attn.k_proj.weight", "self_attn.v_proj.weight"},
    {"self_attn.o_proj.weight"},
    {"mlp.gate_proj.weight", "mlp.up_proj.weight"},
    {"mlp.down_proj.weight"}};

// Linear layers' weights of which the first half of the outputs, or of the inputs, is 2^14 times
// smaller than the other: below the normal range of codes with the whole matrix' scale.
class UnevenHalves final : public TensorSource {
 public:
  bool has(const std::string& name) const override { return name != "lm_head.weight"; }  // tied
  at::Tensor read(const std::string& name, at::IntArrayRef shape) const override {
    const int64_t numel = c10::multiply_integers(shape);
    const auto shift = static_cast<double>(std::hash<std::string>()(name) % 7);
    at::Tensor value = (at::arange(numel, at::kDouble) * 0.7 + shift).sin().to(at::kFloat) * 0.3;
    value = value.view(shape);
    if (!name.ends_with("proj.weight")) return value;
    const bool by_inputs = name.ends_with("o_proj.weight") || name.ends_with("down_proj.weight");
    const int64_t dim = by_inputs ? 1 : 0;
    value.narrow(dim, 0, shape[static_cast<size_t>(dim)] / 2).mul_(0x1p-14);
    return value;
  }
};

// The part of whole that has this rank's shape, of two equal parts.
at::Tensor part_of(const at::Tensor& whole, const at::Tensor& like, int rank) {
  for (int64_t dim = 0; dim < whole.dim(); ++dim) {
    if (like.size(dim) < whole.size(dim)) {
      return whole.narrow(dim, rank * like.size(dim), like.size(dim));
    }
  }
  return whole;
}

}  // namespace

TEST_CASE("training passes have products in 8 bits, evaluations and predictions do not") {
  const Losses exact = losses(Fp8::kOff), eight = losses(Fp8::kTensorwise);
  CHECK(eight.step != exact.step);
  CHECK(eight.training_pass != exact.training_pass);
  CHECK(eight.evaluation == exact.evaluation);
  CHECK(eight.pass == exact.pass);
}

TEST_CASE("some layers alone have products in 8 bits") {
  const Losses exact = losses(Fp8::kOff), all = losses(Fp8::kTensorwise);
  std::vector<double> seen{exact.step, all.step};
  for (const std::string layers : {"qkv", "o", "up", "down", "qkv,down"}) {
    INFO(layers);
    const Losses some = losses(Fp8::kTensorwise, layers);
    CHECK(std::ranges::count(seen, some.step) == 0);
    CHECK(some.training_pass != exact.training_pass);
    CHECK(some.pass == exact.pass);
    seen.push_back(some.step);
  }
}

TEST_CASE("layers in 8 bits are refused where none are, and by name where a name is wrong") {
  const auto refusal = [](Fp8 fp8, const std::string& layers) {
    ParallelConfig config = config_of("single", fp8);
    config.precision.fp8_layers = layers;
    return refusal_of({}, config, small_llama());
  };
  CHECK_THAT(refusal(Fp8::kTensorwise, "qkv,gate"),
             contains("\"gate\"") && contains("qkv,o,up,down"));
  CHECK_THAT(refusal(Fp8::kTensorwise, "up,up"), contains("twice"));
  CHECK_THAT(refusal(Fp8::kTensorwise, ""), contains("empty"));
  CHECK_THAT(refusal(Fp8::kTensorwise, "none"), contains("--fp8 off"));
  CHECK_THAT(refusal(Fp8::kOff, "qkv"), contains("no product is in 8 bits"));
  CHECK_THAT(refusal(Fp8::kAuto, "all"), contains("measure_fp8_layers()"));
}

TEST_CASE("products in 8 bits are refused by name where they are not built") {
  for (const std::string strategy : {"single", "zero3"}) {
    CHECK_THAT(refusal_of({}, config_of(strategy, Fp8::kRowwise), toy_language_model()),
               contains("Block::takes_fp8") && contains("--fp8 off"));
  }
  CHECK_THAT(refusal_of({.context = 2}, config_of("ddp", Fp8::kTensorwise), small_llama()),
             contains("fp8 on a context axis of 2 ranks") && contains("--fp8 off"));
}

TEST_CASE("frozen weights in 8 bits are the nearest codes times one power of two a product") {
  const Named exact = values_with(FrozenDtype::kSame), eight = values_with(FrozenDtype::kFp8);
  REQUIRE(exact.size() == eight.size());
  size_t matrices = 0;
  for (const auto& [name, value] : exact) {
    if (!name.ends_with("proj.weight")) CHECK(eight.at(name).equal(value));
  }
  for (const std::string block : {"layers.0.", "layers.1."}) {
    for (const std::vector<std::string>& names : kProducts) {
      double largest = 0;
      for (const std::string& name : names) {
        REQUIRE(exact.contains(block + name));
        largest = std::max(largest, exact.at(block + name).abs().max().item<double>());
      }
      const double scale = std::exp2(std::ceil(std::log2(largest / 448)));
      for (const std::string& name : names) {
        INFO(block << name);
        CHECK(eight.at(block + name).equal(nearest(exact.at(block + name), scale)));
        CHECK(!eight.at(block + name).equal(exact.at(block + name)));
        ++matrices;
      }
    }
  }
  CHECK(matrices == 14);
}

// Without codes' values these layers would read what nobody has written.
TEST_CASE("layers outside fp8_layers multiply by the values of frozen weights in 8 bits") {
  const auto scores_with = [](Fp8 fp8, const std::string& layers) {
    ParallelConfig config = frozen_config("single", FrozenDtype::kFp8);
    config.precision.fp8 = fp8;
    config.precision.fp8_layers = layers;
    at::Tensor scores;
    play({with_adapters(small_llama()), {}, config}, [&](Player& player) {
      const at::NoGradGuard no_grad;
      scores = player.strategy().forward(batch_of_words(), {.training = true}).clone();
    });
    return scores;
  };
  const at::Tensor exact = scores_with(Fp8::kOff, "all");
  for (const std::string layers : {"qkv", "o", "up", "down"}) {
    const at::Tensor some = scores_with(Fp8::kTensorwise, layers);
    const double difference = ((some - exact).norm() / exact.norm()).item<double>();
    INFO(layers);
    CHECK(difference > 0);
    CHECK(difference < 0.2);
  }
}

TEST_CASE("parts of a frozen matrix on a tensor axis have the codes of the whole one") {
  const UnevenHalves source;
  Setup setup{with_adapters(small_llama()), {}, frozen_config("single", FrozenDtype::kFp8)};
  setup.source = &source;
  Named whole;
  play(setup, [&](Player& player) { whole = parameters_of(player.strategy()); });
  setup.mesh.tensor = 2;
  play(setup, [&](Player& player) {
    for (const auto& [name, value] : parameters_of(player.strategy())) {
      const at::Tensor expected = part_of(whole.at(name), value, player.rank());
      if (name.ends_with("proj.weight")) test::require_bit_equal(value, expected, name);
    }
  });
}

TEST_CASE("frozen weights in 8 bits take a byte each, on every rank its part") {
  for (const std::string strategy : {"single", "zero3", "fsdp"}) {
    const auto bytes_with = [&](FrozenDtype frozen) {
      ParallelConfig config = frozen_config(strategy, frozen);
      config.persistence_threshold = 0;
      config.precision.parameter = at::kBFloat16;
      int64_t bytes = 0, numel = 0;
      const int ranks = strategy == "single" ? 1 : 2;
      const ModelSpec model = with_adapters(
          causal(sized("llama", {.vocabulary = kWords, .hidden = 64, .heads = 4, .layers = 2})));
      play({model, {.data = ranks}, config}, [&](Player& player) {
        Strategy& strategy = player.strategy();
        const Named values = parameters_of(strategy);
        if (player.rank() != 0) return;
        bytes = strategy.memory().parameter_bytes;
        for (const auto& [name, value] : values) {
          if (name.ends_with("proj.weight")) numel += value.numel();
        }
      });
      return std::pair(bytes * ranks, numel);
    };
    INFO(strategy);
    const auto [whole, numel] = bytes_with(FrozenDtype::kSame);
    const auto [halved, same] = bytes_with(FrozenDtype::kFp8);
    REQUIRE(numel > 0);
    const int64_t scales = 16 * 14 * (strategy == "single" ? 1 : 2);
    CHECK(whole - halved == numel - scales);
  }
}

TEST_CASE("the state of frozen weights in 8 bits is their codes and scales, for any layout") {
  const auto run = [](const std::string& strategy, int ranks, uint64_t seed, auto&& body) {
    ParallelConfig config = frozen_config(strategy, FrozenDtype::kFp8);
    config.persistence_threshold = 100;
    // One layer: its decoded values are still there when the state is restored.
    Setup setup{with_adapters(small_llama(1)), {.data = ranks}, config};
    setup.seed = seed;
    play(setup, body);
  };
  // A rank alone has whole tensors.
  std::map<std::pair<std::string, std::string>, at::Tensor> saved;
  Named values;
  double loss = 0;
  run("single", 1, 5, [&](Player& player) {
    loss = player.evaluate({batch_of_words()}).loss;
    for (const StateTensor& piece : player.strategy().state()) {
      // cuBLAS asks this of scales, of which it takes the tensor's own.
      const auto address = reinterpret_cast<uintptr_t>(piece.value.const_data_ptr());
      if (piece.kind == "scale") CHECK(address % 16 == 0);
      saved[{piece.name, piece.kind}] = piece.get().clone();
    }
    values = parameters_of(player.strategy());
  });
  const auto codes = saved.find({"layers.0.mlp.down_proj.weight", "codes"});
  REQUIRE(codes != saved.end());
  CHECK(codes->second.scalar_type() == at::kByte);
  CHECK(saved.contains({"layers.0.mlp.down_proj.weight", "scale"}));
  CHECK(!saved.contains({"layers.0.mlp.down_proj.weight", "parameter"}));
  for (const std::string strategy : {"ddp", "zero3", "fsdp"}) {
    run(strategy, 2, 6, [&](Player& player) {
      Strategy& other = player.strategy();
      test::require(player.evaluate({batch_of_words()}).loss != loss, "another seed, same loss");
      for (const StateTensor& piece : other.state()) {
        const at::Tensor& whole = saved.at({piece.name, piece.kind});
        piece.set(whole.narrow(0, piece.slice.begin, piece.slice.numel()));
      }
      other.state_restored();
      for (const auto& [name, value] : parameters_of(other)) {
        test::require_bit_equal(value, values.at(name), strategy + " " + name);
      }
      const double restored = player.evaluate({batch_of_words()}).loss;
      test::require(std::abs(restored - loss) < 1e-6 * loss, strategy, ": loss ", restored,
                    " instead of ", loss);
    });
  }
}

TEST_CASE("frozen weights in 8 bits are refused by name where nothing is frozen") {
  for (const std::string strategy : {"single", "zero3"}) {
    const ParallelConfig config = frozen_config(strategy, FrozenDtype::kFp8);
    for (const ModelSpec& model : {toy_language_model(), small_llama()}) {
      CHECK_THAT(refusal_of({}, config, model),
                 contains("frozen_dtype fp8") && contains("--frozen_dtype same"));
    }
  }
}
