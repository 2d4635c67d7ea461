// SPDX-License-Identifier: MIT
#define main moe_aux_main
#include "loops/moe_aux.cpp"
#undef main

#include "example.h"

namespace {

using namespace strangers;

const auto make = [] { return std::make_shared<Experts>(); };

Losses plain() {
  const auto net = seeded(make);
  torch::optim::AdamW optimizer(net->parameters(), adamw(1e-2));
  return plain_steps(optimizer, 20, [&](int i) {
    const MicroBatch batch = rows(i, 0, 1);
    const auto [scores, probabilities] = net->forward(batch.input_ids);
    return F::cross_entropy(scores, batch.labels) + 0.01 * balance_loss(probabilities);
  });
}

const Registered moe_aux(example("moe_aux", make, train, plain));

}  // namespace
