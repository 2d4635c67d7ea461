// SPDX-License-Identifier: MIT
#pragma once
// LibTorch users' program shapes, each compared with a plain loop over the batch.
#include <ATen/CPUGeneratorImpl.h>
#include <torch/nn/module.h>

#include "tessera/model/callable.h"
#include "tests/support/test.hpp"
#include "tests/unit/backends/module_shapes.h"

namespace tessera::testing {

struct ProgramTraits {
  bool blocks = false;  // several blocks: a pipeline can partition it
  bool whole = false;   // a rank's rows form one micro-batch
};

// Net: a module that is not Cloneable. mean: the loss of all rows in plain LibTorch.
template <typename Net>
void check_program(const std::string& name, const std::vector<MicroBatch>& data,
                   const std::function<at::Tensor(Net&, const MicroBatch&)>& mean,
                   const std::function<ModelSpec(std::shared_ptr<Net>)>& model,
                   const ProgramTraits& traits = {}) {
  INFO(name);
  torch::manual_seed(3);
  const auto net = std::make_shared<Net>(), plain = std::make_shared<Net>();
  {
    const at::NoGradGuard no_grad;
    for (const auto& item : net->named_parameters()) {
      plain->named_parameters()[item.key()].copy_(item.value());
    }
  }
  const Trained expected = train_plain(*plain, data, [&](const MicroBatch& batch) {
    return mean(*plain, batch) * batch.target_count;
  });
  const std::string before = state_of(*net);
  const ModelSpec spec = model(net);
  std::vector<NamedLayout> layouts = layouts_of_shapes(traits.blocks);
  const ParallelConfig again{
      .strategy = "fsdp", .persistence_threshold = 8, .gradient_checkpointing = true};
  layouts.push_back({"fsdp with recomputation", again, {.data = 2}});
  if (traits.blocks)
    layouts.push_back({"2 x 2", {.strategy = "zero2"}, {.pipeline = 2, .data = 2}});
  for (const auto& [layout, config, mesh] : layouts) {
    INFO(layout);
    const std::string outcome = within_limit(name + ", " + layout, [&] {
      const int micro_batches = traits.whole ? mesh.data : mesh.data == 3 ? 6 : 4;
      return difference(train_under(config, mesh, spec, {data, micro_batches}), expected);
    });
    CHECK(outcome == "");
    if (traits.whole || mesh.data == 3 || mesh.pipeline * mesh.data == 4) continue;
    const std::string in_calls = within_limit(name + " in two calls, " + layout, [&] {
      return difference(train_under(config, mesh, spec, {.batches = data, .calls = 2}), expected);
    });
    CHECK(in_calls == "");
    CHECK(state_of(*net) == before);
  }
}

// Two steps of twelve rows.
inline std::vector<MicroBatch> two_steps(
    const std::function<MicroBatch(const at::Generator&)>& batch) {
  const auto generator = at::make_generator<at::CPUGeneratorImpl>(7);
  return {batch(generator), batch(generator)};
}

}  // namespace tessera::testing
