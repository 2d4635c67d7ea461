// SPDX-License-Identifier: MIT
// Muon compared with torch.optim.Muon, and misuse of optimizers of whole matrices.
#include "tessera/optim/muon.h"

#include <ATen/ATen.h>

#include "lib/optim/matrix_updates.h"
#include "tessera/core/json.h"
#include "tessera/model/parameter_groups.h"
#include "tessera/optim/adamw.h"
#include "tests/support/messages.hpp"
#include "tests/support/scalar.hpp"
#include "tests/support/toy_models.h"

using namespace tessera;
using namespace tessera::testing;
using tessera::test::scalar;

namespace {

constexpr double kMuonRate = 0.02;

// Numbers of make_muon.py.
at::Tensor wave(at::IntArrayRef shape, double step) {
  const at::Tensor i = at::arange(shape[0] * shape[1], at::kDouble);
  return (1.7 * i + 0.9 * step + 0.3 * i * i).sin().to(at::kFloat).view(shape);
}

// One matrix updated as by a strategy on one rank.
struct One {
  std::shared_ptr<const MatrixOptimizer> optimizer;
  at::Tensor parameter, momentum = at::zeros_like(parameter), count = scalar(0);

  void step(const at::Tensor& gradient, double rate) {
    const std::vector<ParameterRange> placed{{"w", parameter.sizes().vec(), 0, parameter.numel()}};
    count.add_(1);
    NamedTensors state{{"momentum_buffer", momentum}};
    const at::Tensor update = optimizer->update({"w", gradient.clone(), {}, count}, state);
    const auto applied = apply_updates(optimizer)({{.parameter = parameter.view({-1}),
                                                    .gradient = update.contiguous().view({-1}),
                                                    .placed = placed}});
    applied->begin_step({scalar(rate), {}, {}});
    applied->update(0, 1);
  }
};

// After torch/optim/_muon.py (2.11), line by line.
void torch_step(const at::Tensor& parameter, const at::Tensor& momentum, const at::Tensor& gradient,
                const MuonConfig& config, double rate) {
  momentum.lerp_(gradient, 1 - config.momentum);
  const at::Tensor update = config.nesterov ? gradient.lerp(momentum, config.momentum) : momentum;
  at::Tensor x = update.to(at::kBFloat16);
  if (x.size(0) > x.size(1)) x = x.t();
  x = x / x.norm().clamp_min(config.epsilon);
  const auto [a, b, c] = config.ns_coefficients;
  for (int i = 0; i < config.ns_steps; ++i) {
    const at::Tensor gram = at::matmul(x, x.t());
    x = at::addmm(x, at::addmm(gram, gram, gram, b, c), x, a);
  }
  if (update.size(0) > update.size(1)) x = x.t();
  const double rows = double(update.size(0)), columns = double(update.size(1));
  const double adjusted = config.adjust_lr == MuonLrAdjustment::kOriginal
                              ? std::sqrt(std::max(1.0, rows / columns))
                              : 0.2 * std::sqrt(std::max(rows, columns));
  parameter.mul_(1 - rate * config.weight_decay);
  parameter.add_(x, -rate * adjusted);
}

double distance(const at::Tensor& a, const at::Tensor& b) {
  return (a - b).abs().max().item<double>() / b.abs().max().item<double>();
}

at::Tensor numbers(const Json& list) {
  std::vector<double> values;
  for (const Json& item : list.items()) values.push_back(item.as_double());
  return at::tensor(values, at::kDouble).to(at::kFloat);
}

// Invalid updates of a toy's matrices.
class Wrong : public MatrixOptimizer {
 public:
  enum What { kShape, kState, kName, kFactor };
  explicit Wrong(What what) : what_(what) {}
  std::string name() const override { return "Wrong"; }
  NamedShapes state_shapes(c10::IntArrayRef shape) const override {
    return {{what_ == kName ? "parameter" : "sum", shape.vec()}};
  }
  at::Tensor update(const MatrixStep& step, NamedTensors& state) const override {
    if (what_ == kState) state.front().second = at::zeros({1});
    return what_ == kShape ? step.gradient.t() : step.gradient;
  }
  double lr_factor(c10::IntArrayRef) const override { return what_ == kFactor ? 0 : 1; }

 private:
  What what_;
};

std::string refusal(const std::function<void()>& call) {
  return error_of(ErrorCode::kInvalidArgument, call);
}

bool says(const std::string& text, const std::string& part) {
  INFO(text);
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("twenty steps of Muon are those of torch's source, operation by operation") {
  for (const auto& [rows, columns] : {std::pair(24, 40), std::pair(33, 7), std::pair(16, 16)}) {
    for (const auto adjust : {MuonLrAdjustment::kOriginal, MuonLrAdjustment::kMatchRmsAdamW}) {
      for (const bool nesterov : {true, false}) {
        const MuonConfig config{.nesterov = nesterov, .adjust_lr = adjust};
        One ours{muon(config), at::randn({rows, columns})};
        const at::Tensor expected = ours.parameter.clone(), momentum = at::zeros_like(expected);
        for (int step = 0; step < 20; ++step) {
          const at::Tensor gradient = at::randn({rows, columns});
          ours.step(gradient, kMuonRate);
          torch_step(expected, momentum, gradient, config, kMuonRate);
        }
        INFO(rows << " x " << columns << ", nesterov " << nesterov);
        CHECK(distance(ours.parameter, expected) < 1e-6);
        CHECK(ours.momentum.equal(momentum));
      }
    }
  }
}

// Recorded on another machine, where bf16 products may round differently. A rounding is 2^-8 of an
// entry, and the iteration's slope at most 3.4445^5 = 485 for small singular values. The recorded
// matrices have none, and agree within 1e-6 where products round alike.
TEST_CASE("twenty steps of Muon are those that torch.optim.Muon took") {
  for (const Json& item : Json::parse_file(TESSERA_TEST_DATA "/muon.json").items()) {
    const auto has = [&](const char* name) { return item.find(name).has_value(); };
    MuonConfig config;
    if (has("weight_decay")) config.weight_decay = item.at("weight_decay").as_double();
    if (has("momentum")) config.momentum = item.at("momentum").as_double();
    if (has("nesterov")) config.nesterov = item.at("nesterov").as_bool();
    if (has("ns_steps")) config.ns_steps = static_cast<int>(item.at("ns_steps").as_int64());
    if (has("adjust_lr_fn")) config.adjust_lr = MuonLrAdjustment::kMatchRmsAdamW;
    const std::vector<Json> shape = item.at("shape").items();
    const std::vector<int64_t> sizes{shape[0].as_int64(), shape[1].as_int64()};
    One ours{muon(config), wave(sizes, -1)};
    for (int step = 0; step < 20; ++step) ours.step(wave(sizes, step), kMuonRate);
    INFO(item.at("shape").dump());
    CHECK(distance(ours.momentum.flatten(), numbers(item.at("momentum_buffer"))) < 1e-6);
    const double apart = distance(ours.parameter.flatten(), numbers(item.at("parameter")));
    INFO(apart);
    CHECK(apart < 20 * kMuonRate * 0x1p-8);
  }
}

TEST_CASE("Muon's rate beside the others', and a group's, count for the step and the decay") {
  const at::Tensor start = at::randn({6, 4}), gradient = at::randn({6, 4});
  One own{muon({.relative_rate = 5}), start.clone()};
  One plain{muon({}), start.clone()};
  own.step(gradient, kMuonRate);
  plain.step(gradient, 5 * kMuonRate);
  CHECK(distance(own.parameter, plain.parameter) < 1e-6);
  CHECK(muon({.relative_rate = 5})->relative_rate() == 5);
}

TEST_CASE("hidden matrices are those that names call neither embedding nor head") {
  const MatrixPredicate hidden = hidden_matrices();
  const auto is_hidden = [&](const char* block, const char* parameter) {
    return hidden(block, parameter, {4, 4});
  };
  CHECK(is_hidden("h.3", "mlp.dense_h_to_4h.weight"));
  CHECK(is_hidden("layers.0", "self_attn.q_proj.weight"));
  CHECK(is_hidden("layer.1", "up.weight"));
  CHECK(is_hidden("h.0", "attn.headroom.weight"));
  for (const char* block : {"word_embeddings", "embed_tokens", "wte", "wpe", "lm_head", "score",
                            "classifier", "head", "transformer.wte"}) {
    INFO(block);
    CHECK(!is_hidden(block, "weight"));
  }
  CHECK(!is_hidden("layers.0", "mlp.experts.down_proj_bias"));
  CHECK(!is_hidden("model", "embed_tokens.weight"));
  CHECK(!is_hidden("model", "lm_head.weight"));
}

TEST_CASE("optimizers of matrices that cannot be are refused with a sentence") {
  const OptimizerFactory adamw = make_adamw({});
  const auto with = [&](Wrong::What what) {
    return refusal([&] { with_matrices(std::make_shared<Wrong>(what), hidden_matrices(), adamw); });
  };
  CHECK(says(with(Wrong::kShape), "return a floating-point tensor of the gradient's shape"));
  CHECK(says(with(Wrong::kState), "left a state of other names or shapes"));
  CHECK(says(with(Wrong::kName), "\"parameter\" is taken"));
  CHECK(says(with(Wrong::kFactor), "factors must be positive"));
  CHECK(says(refusal([&] { with_matrices(nullptr, hidden_matrices(), adamw); }),
             "one of them is null"));
  CHECK(says(refusal([&] { make_muon({}, make_muon({}, adamw)); }),
             "the optimizer beside it must treat every element alone"));
  CHECK(says(refusal([] { muon({.ns_steps = 100}); }), "must lie in [0, 99]"));
  CHECK(says(refusal([] { muon({.momentum = -1}); }), "must not be negative"));
  CHECK(says(refusal([] { muon({.epsilon = 0}); }), "epsilon 0 must be positive"));
  CHECK(says(refusal([] { muon({.relative_rate = 0}); }), "relative_rate 0 must be positive"));
  // As a range of elements.
  const at::Tensor parameter = at::zeros({4});
  CHECK(says(
      refusal([&] { make_muon({}, adamw)({{.parameter = parameter, .gradient = parameter}}); }),
      "looks at whole matrices, but was asked to update elements"));
}

TEST_CASE("a model without hidden matrices, and a group with betas, are refused") {
  const OptimizerFactory optimizer = make_muon({}, make_adamw({}));
  const ModelSpec toy = toy_language_model({.layers = 1});
  const auto only_ends = [&] {
    with_marked_matrices(freeze(toy, [](const std::string& block,
                                        const std::string&) { return block.starts_with("layer"); }),
                         optimizer);
  };
  CHECK(says(refusal(only_ends), "Muon takes no parameter of model"));
  ParameterGroup fast{.name = "fast", .matches = named("up.weight")};
  fast.betas = std::pair(0.5, 0.9);
  CHECK(says(refusal([&] { with_marked_matrices(with_groups(toy, {fast}), optimizer); }),
             "parameter group \"fast\" sets betas, which Muon does not have"));
  CHECK(with_marked_matrices(toy, optimizer).matrices_marked);
  CHECK(!with_marked_matrices(toy, make_adamw({})).matrices_marked);
}
