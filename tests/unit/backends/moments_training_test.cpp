// SPDX-License-Identifier: MIT
// Quality of training with moments in bf16.
#include <ATen/ATen.h>

#include <cmath>

#include "lib/testing/player.h"
#include "tessera/optim/adamw.h"
#include "tests/support/test.hpp"
#include "tests/support/toy_models.h"

using namespace tessera;
using namespace tessera::testing;

namespace {

// Tokens whose successor is a function of them in three of four cases. The evaluation loss after
// 800 steps, whose gradients become much smaller on the way.
double loss_after_training(MomentsDtype moments, uint64_t seed) {
  const ToyConfig config{.vocabulary = 61, .hidden = 16, .layers = 2};
  const auto batch = [&](uint64_t number) {
    MicroBatch drawn = toy_micro_batch(config, 8, 16, 1000 * seed + number);
    const at::Tensor follows = (drawn.input_ids * 7 + 3).remainder(config.vocabulary);
    const at::Tensor random = drawn.input_ids.roll(1, 1).add(1).remainder(config.vocabulary);
    const at::Tensor rare = (drawn.input_ids + drawn.input_ids.roll(2, 1)).remainder(4).eq(0);
    return make_micro_batch(drawn.input_ids, at::where(rare, random, follows));
  };
  double loss = 0;
  play({.model = toy_language_model(config),
        .optimizer = make_adamw({.moments = moments}),
        .seed = seed},
       [&](Player& player) {
         Strategy& strategy = player.strategy();
         for (uint64_t step = 0; step < 800; ++step) {
           strategy.forward_backward(std::vector{batch(step)});
           strategy.optimizer_step(step < 100 ? 1e-2 : 3e-3);
         }
         std::vector<MicroBatch> held_out;
         for (uint64_t i = 0; i < 16; ++i) held_out.push_back(batch(900 + i));
         loss = strategy.evaluate(held_out).loss.item<double>();
       });
  return loss;
}

}  // namespace

TEST_CASE("training with moments in bf16 ends within the spread of seeds") {
  constexpr uint64_t kSeeds = 4;
  std::vector<double> losses, differences;
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    losses.push_back(loss_after_training(MomentsDtype::kFloat32, seed));
    differences.push_back(loss_after_training(MomentsDtype::kBFloat16, seed) - losses.back());
  }
  const at::Tensor all = at::tensor(losses, at::kDouble);
  const double spread = all.std().item<double>();
  const double mean = at::tensor(differences, at::kDouble).mean().item<double>();
  INFO("losses " << all << ", differences " << at::tensor(differences, at::kDouble));
  CHECK(all.max().item<double>() < 2.5);  // of 4.1 at the start
  CHECK(std::abs(mean) <= spread / 2);
}
