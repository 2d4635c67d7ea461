// SPDX-License-Identifier: MIT
// Frozen parameters keep their bits, have no gradient and optimizer state, and do not affect the
// others' training.
#include <ATen/ATen.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include <algorithm>

#include "tessera/core/error.h"
#include "tessera/model/adapters.h"
#include "tests/support/test.hpp"
#include "tests/support/torch_modules.hpp"
#include "tests/unit/backends/plain_training.h"

using namespace tessera;
using namespace tessera::testing;
namespace nn = torch::nn;

namespace {

// Blocks: Linear, Tanh, a pair of layers, LayerNorm, Linear.
nn::Sequential some_module() {
  torch::manual_seed(3);
  return nn::Sequential(nn::Linear(6, 5), nn::Tanh(), Pair(nn::Linear(5, 7), nn::Linear(7, 5)),
                        nn::LayerNorm(nn::LayerNormOptions({5})), nn::Linear(5, 2));
}

std::vector<MicroBatch> frozen_batches() {
  const auto generator = at::make_generator<at::CPUGeneratorImpl>(7);
  std::vector<MicroBatch> all;
  for (int i = 0; i < 3; ++i) {
    all.push_back(make_micro_batch(at::randn({8, 6}, generator), at::randn({8, 2}, generator)));
  }
  return all;
}

// Freezes parameters whose names start with one of these; with `only` all others.
void check_frozen(const std::vector<std::string>& prefixes, bool only = false) {
  nn::Sequential module = some_module();
  Weights frozen;
  for (auto& item : module->named_parameters()) {
    const bool named = std::any_of(prefixes.begin(), prefixes.end(),
                                   [&](const std::string& p) { return item.key().starts_with(p); });
    if (named == only) continue;
    item.value().set_requires_grad(false);
    frozen[item.key()] = item.value().clone();
  }
  const auto data = frozen_batches();
  const ModelSpec model = from_sequential(module, squared_error);
  std::vector<std::pair<NamedLayout, Trained>> results;
  for (const NamedLayout& layout : layouts_of_modules()) {
    INFO(layout.name);
    CHECK_NOTHROW(
        results.emplace_back(layout, train_under(layout.config, layout.mesh, model, {data})));
  }
  const Trained all = train_under({}, {}, from_sequential(some_module(), squared_error), {data});
  const Trained expected = train_plain(*module, data, [&](const MicroBatch& batch) {
    return squared_error(module->forward(batch.input_ids), batch);
  });
  for (const auto& [layout, trained] : results) {
    INFO(layout.name);
    CHECK(difference(trained, expected) == "");
    for (const auto& [name, value] : frozen) {
      INFO(name);
      CHECK(at::equal(trained.weights.at(name), value));
      CHECK(trained.frozen.contains(name));
    }
    CHECK(trained.frozen.size() == frozen.size());
    if (layout.name == "single") CHECK(trained.optimizer_bytes < all.optimizer_bytes);
  }
}

}  // namespace

TEST_CASE("a frozen layer in the middle") { check_frozen({"2.second."}); }
TEST_CASE("a frozen first layer") { check_frozen({"0."}); }
TEST_CASE("a whole frozen block, and a bias of another") { check_frozen({"2.", "4.bias"}); }
TEST_CASE("everything frozen but one small block") { check_frozen({"3."}, /*only=*/true); }
TEST_CASE("everything frozen but one bias of the first block") {
  check_frozen({"0.bias"}, /*only=*/true);
}
