// SPDX-License-Identifier: MIT
#define main translation_main
#include "loops/translation.cpp"
#undef main

#include "example.h"

namespace {

using namespace strangers;

const auto make = [] { return std::make_shared<Translator>(); };

Losses plain() {
  const auto net = seeded(make);
  torch::optim::AdamW optimizer(net->parameters(), adamw(5e-3));
  return plain_steps(optimizer, 20, [&](int i) { return loss(*net, sentences(i, 0, 1)); });
}

const Registered translation(example("translation", make, train, plain));

}  // namespace
