// SPDX-License-Identifier: MIT
#define main groups_main
#include "loops/groups.cpp"
#undef main

#include "example.h"

namespace {

using namespace strangers;

Losses plain() {
  nn::Sequential net = seeded(tagger);
  std::map<std::string, at::Tensor> weights;
  for (const auto& item : net->named_parameters()) weights[item.key()] = item.value();
  weights.at("0.weight").requires_grad_(false);
  const auto group = [&](const std::vector<std::string>& names, double rate, double decay) {
    std::vector<at::Tensor> tensors;
    for (const std::string& name : names) tensors.push_back(weights.at(name));
    return torch::optim::OptimizerParamGroup(
        tensors, std::make_unique<torch::optim::AdamWOptions>(adamw(rate, decay)));
  };
  torch::optim::AdamW optimizer(
      {group({"1.weight"}, 1e-3, 0.1), group({"1.bias", "3.weight", "3.bias"}, 1e-2, 0)},
      adamw(1e-2));
  return plain_steps(optimizer, 20, [&](int i) {
    const MicroBatch batch = rows(i, 0, 1);
    return F::cross_entropy(net->forward(batch.input_ids), batch.labels);
  });
}

const Registered groups(example("groups", tagger, train, plain));

}  // namespace
