// SPDX-License-Identifier: MIT
// Losses of routers, and counts of experts' tokens: sums, their way to the head, and padding.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>

#include <map>
#include <string>
#include <vector>

#include "lib/models/expert_feed_forward.h"
#include "lib/models/router_path.h"
#include "lib/ops/router_sums.h"
#include "tessera/core/error.h"
#include "tessera/core/real_tokens.h"
#include "tessera/model/whole_model.h"
#include "tessera/models/language_model.h"
#include "tests/unit/ops/gradients.h"

using namespace tessera;
using namespace tessera::testing;

namespace {

DecoderConfig small_model() {
  DecoderConfig config = LanguageModel::defaults("qwen3_moe");
  config.vocabulary = 32, config.hidden = 15, config.layers = 3;  // odd numbers of elements
  config.heads = config.key_heads = 3, config.head_dim = 4;
  config.dense_layers = {1};
  config.router_aux_loss_coef = 0.5, config.router_z_loss_coef = 0.25;
  return config;
}

MicroBatch small_batch() {
  at::manual_seed(7);
  const at::Tensor ids = at::randint(0, 32, {3, 5}, at::kLong);
  return make_micro_batch(ids, at::randint(0, 32, {3, 5}, at::kLong));
}

at::Tensor last_two_hidden() { return at::arange(5).lt(3).expand({3, 5}).clone(); }

}  // namespace

TEST_CASE("a router's sums and their gradients, with padding left out and without") {
  at::manual_seed(4);
  const int64_t h = 6, inner = 5, experts = 4;
  const at::Tensor real = at::rand({15}).lt(0.7);
  for (const bool masked : {false, true}) {
    DecoderBlockOptions options;
    options.gated = true;
    options.routing = {2, true};
    if (masked) options.counted_tokens = real.to(at::kFloat);
    const Tensors inputs{at::randn({3, 5, h}), 2 * at::randn({experts, h}),
                         at::randn({experts, 2 * inner, h}), at::randn({experts, h, inner})};
    const auto sums_with = [&](const Tensors& x) {
      DecoderBlockWeights w;
      w.experts = {x[1], x[2], x[3]};
      at::Tensor sums;
      DecoderBlockOptions asked = options;
      asked.router_sums = &sums;
      const at::Tensor output = tessera::detail::experts(x[0], w, asked);
      return std::pair{output, sums};
    };
    check_gradients(
        inputs,
        [&](const Tensors& x) {
          // All weights have a gradient, the experts' of 0.
          const auto [output, sums] = sums_with(x);
          return sums.narrow(0, 0, experts + 1) + 0 * output.sum();
        },
        [&](const Tensors& x) {
          const at::Tensor logits = x[0].flatten(0, 1).mm(x[1].t());
          const at::Tensor by_token =
              at::cat({logits.softmax(-1), logits.exp().sum(-1, true).log().square()}, 1);
          at::Tensor none = x[2].sum() * 0 + x[3].sum() * 0;
          return (masked ? by_token * real.unsqueeze(1) : by_token).sum(0) + none;
        },
        1e-5);
    const at::NoGradGuard no_grad;
    const at::Tensor counts = sums_with(inputs).second.narrow(0, experts + 1, experts);
    CHECK(counts.sum().item<double>() == 2 * (masked ? real.sum().item<double>() : 15));
  }
}

TEST_CASE("sums behind a hidden state of 16 bits keep every bit, as do their gradients") {
  at::manual_seed(2);
  const DecoderConfig config = small_model();
  const RouterPath path(config);
  const MicroBatch batch = small_batch();
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf, at::kDouble}) {
    const at::ScalarType wide = dtype == at::kDouble ? at::kDouble : at::kFloat;
    const at::Tensor hidden = at::randn({3, 5, 15}).to(dtype).requires_grad_(true);
    const int64_t count = ops::router_sum_count(config.experts);
    // Some bits are no numbers in 16 bits.
    Tensors own;
    for (int layer = 0; layer < 2; ++layer) {
      own.push_back(at::randn({count}, wide).mul(1e-30).requires_grad_(true));
    }
    RoutedState state = path.open(path.begin(hidden, batch), batch);
    CHECK(state.sums.count_nonzero().item<int64_t>() == 0);
    for (const size_t layer : {0, 1, 2}) {  // 1 is dense
      const at::Tensor sums = layer == 1 ? at::Tensor() : own[layer / 2];
      state = path.open(path.close(state.hidden, state.sums, sums, layer), batch);
    }
    CHECK(at::equal(state.hidden, hidden));
    CHECK(at::equal(state.sums, at::stack(own)));
    const at::Tensor of_sums = at::randn({2, count}, wide).mul(1e-30),
                     of_hidden = at::randn({3, 5, 15}).to(dtype);
    const auto gradients = torch::autograd::grad({state.hidden, state.sums},
                                                 {hidden, own[0], own[1]}, {of_hidden, of_sums});
    CHECK(at::equal(gradients[0], of_hidden));
    CHECK(at::equal(at::stack({gradients[1], gradients[2]}), of_sums));
  }
}

TEST_CASE("losses of routers are means over real tokens alone, in training alone") {
  const DecoderConfig config = small_model();
  DecoderConfig without = config;
  without.router_aux_loss_coef = without.router_z_loss_coef = 0;
  const at::NoGradGuard no_grad;
  WholeModel model(LanguageModel(config).make_causal(), {}),
      plain(LanguageModel(without).make_causal(), {});
  MicroBatch batch = small_batch();
  const BlockContext training{.training = true};
  const double loss = plain.forward(batch, training)[0].item<double>();
  CHECK(plain.forward(batch, training).numel() == 1);
  const at::Tensor trained = model.forward(batch, training), evaluated = model.forward(batch);
  CHECK(evaluated[0].item<double>() == Approx(loss).epsilon(1e-6));
  const double balance = trained[1].item<double>(), z = trained[2].item<double>();
  CHECK(trained[0].item<double>() == Approx(loss + 0.5 * balance + 0.25 * z).epsilon(1e-5));
  CHECK(balance > 15);  // 2 for each of 15 targets is even
  // Two layers of experts, two experts a token.
  CHECK(trained.numel() == 3 + 2 * config.experts);
  CHECK(trained.narrow(0, 3, config.experts).sum().item<double>() == 30);
  CHECK(at::equal(trained.narrow(0, 1, trained.numel() - 1),
                  evaluated.narrow(0, 1, evaluated.numel() - 1)));

  // Padding at the end of rows: as rows without it, whatever it is.
  MicroBatch shorter = make_micro_batch(batch.input_ids.narrow(1, 0, 3).contiguous(),
                                        batch.labels.narrow(1, 0, 3).contiguous());
  batch.labels.narrow(1, 3, 2).fill_(kIgnoredLabel);
  const at::Tensor expected = model.forward(shorter, training);
  MicroBatch marked = batch;
  marked.extra[kRealTokens] = last_two_hidden();
  CHECK(relative_error(model.forward(marked, training), expected) < 1e-6);
  MicroBatch masked = batch;
  masked.attention_mask = last_two_hidden();
  CHECK(relative_error(model.forward(masked, training), expected) < 1e-6);
  CHECK(relative_error(model.forward(batch, training), expected) > 1e-3);
  marked.extra[kRealTokens] = at::ones({3, 4}, at::kBool);
  CHECK_THROWS_WITH(model.forward(marked, training), Catch::Contains("real_tokens has shape"));
}

TEST_CASE("scores of a model that watches its routers are those of one that does not") {
  const DecoderConfig config = small_model();
  DecoderConfig without = config;
  without.router_aux_loss_coef = without.router_z_loss_coef = 0;
  const at::NoGradGuard no_grad;
  WholeModel model(LanguageModel(config).make_causal(), {}),
      plain(LanguageModel(without).make_causal(), {});
  const MicroBatch batch = small_batch();
  CHECK(at::equal(model.logits(batch), plain.logits(batch)));
  // A classifier has no losses of routers, as in transformers.
  WholeModel classifier(LanguageModel(config).make_classifier(3), {});
  const MicroBatch rows = make_micro_batch(batch.input_ids, at::zeros({3}, at::kLong));
  CHECK(classifier.forward(rows).numel() == 2);
}

TEST_CASE("the hand-scheduled layer gives routers the composed one's gradients") {
  DecoderConfig config = small_model();
  config.router_aux_loss_coef = 20;  // large beside the other loss
  std::vector<std::map<std::string, at::Tensor>> gradients(2);
  for (const bool fused : {false, true}) {
    WholeModel model(LanguageModel(config).make_causal(), {});
    MicroBatch batch = small_batch();
    batch.extra[kRealTokens] = last_two_hidden();
    const at::Tensor output = model.forward(
        batch, {.loss_gradient = at::ones({}), .training = true, .fused_layers = fused});
    torch::autograd::backward({output[0]}, {at::ones({})});
    for (const Parameter& p : model.parameters()) gradients[fused][p.name] = p.tensor.grad();
  }
  for (const auto& [name, composed] : gradients[0]) {
    INFO(name);
    CHECK(relative_error(gradients[1].at(name), composed) < 1e-5);
  }
}
