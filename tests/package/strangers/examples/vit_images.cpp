// SPDX-License-Identifier: MIT
#define main vit_images_main
#include "loops/vit_images.cpp"
#undef main

#include "example.h"

namespace {

using namespace strangers;

Losses plain() {
  nn::Sequential net = seeded(vit);
  torch::optim::AdamW optimizer(net->parameters(), adamw(1e-2));
  return plain_steps(optimizer, 10, [&](int i) {
    const MicroBatch batch = images(i, 0, 1);
    return loss(net->forward(batch.input_ids), batch);
  });
}

const Registered vit_images(example("vit_images", vit, train, plain));

}  // namespace
