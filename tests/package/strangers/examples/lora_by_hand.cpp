// SPDX-License-Identifier: MIT
#define main lora_by_hand_main
#include "loops/lora_by_hand.cpp"
#undef main

#include "example.h"

namespace {

using namespace strangers;

Losses plain() {
  nn::Sequential net = seeded(pretrained);
  std::vector<at::Tensor> trained;
  for (const at::Tensor& weight : net->parameters()) {
    if (weight.requires_grad()) trained.push_back(weight);
  }
  torch::optim::AdamW optimizer(trained, adamw(1e-2));
  return plain_steps(optimizer, 20, [&](int i) {
    const MicroBatch batch = rows(i, 0, 1);
    return mean_loss(net->forward(batch.input_ids), batch);
  });
}

const Registered lora_by_hand(example("lora_by_hand", pretrained, train, plain));

}  // namespace
