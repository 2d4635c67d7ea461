// SPDX-License-Identifier: MIT
#define main contrastive_main
#include "loops/contrastive.cpp"
#undef main

#include "example.h"

namespace {

using namespace strangers;

const auto make = [] { return std::make_shared<Towers>(); };

Losses plain() {
  const auto net = seeded(make);
  torch::optim::AdamW optimizer(net->parameters(), adamw(1e-2));
  return plain_steps(optimizer, 20, [&](int i) {
    return clip_loss(*net, pairs(i, 0, 1), 0, [](const at::Tensor& rows) { return rows; });
  });
}

const Registered contrastive(example("contrastive", make, train, plain));

}  // namespace
