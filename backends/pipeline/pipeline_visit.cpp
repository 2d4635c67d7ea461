// SPDX-License-Identifier: MIT
// Visits of all stages' parameters on every rank, in model order.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <map>
#include <sstream>

#include "lib/comm/described_tensor.h"
#include "tessera/backends/pipeline/pipeline.h"
#include "tessera/core/error.h"
#include "tessera/model/tensor_parallel.h"

namespace tessera {
namespace {

// Description of a parameter that a stage sends before its value. Includes the placement without
// communicators.
std::string words_of(const VisitedParameter& parameter) {
  const Placement& placement = parameter.placement;
  const TensorShard& shard = placement.shard;
  return concat(parameter.block, "\n", parameter.name, "\n", placement.frozen, " ", shard.dim, " ",
                shard.parts, " ", shard.full_size);
}

struct ToldParameter {
  std::string block, name;
  Placement placement;
};

ToldParameter told_parameter(const std::string& words) {
  const size_t block = words.find('\n'), name = words.find('\n', block + 1);
  ToldParameter told{words.substr(0, block), words.substr(block + 1, name - block - 1), {}};
  std::istringstream placement(words.substr(name + 1));
  TensorShard& shard = told.placement.shard;
  placement >> told.placement.frozen >> shard.dim >> shard.parts >> shard.full_size;
  check(!placement.fail(), ErrorCode::kInternal, "a stage says of ", told.name, " \"",
        words.substr(name + 1), "\"");
  return told;
}

}  // namespace

// Merges parts of other stages into this rank's own visit, in model order: each part sends its
// parameters one by one, then an end mark. All stages visit a shared block together. A tied
// parameter is sent by its owner's stage.
void Pipeline::visit(const std::function<void(const ParameterVisitor&)>& visit_own,
                     const ParameterVisitor& visitor) {
  const at::NoGradGuard no_grad;
  const auto stages = static_cast<size_t>(pipeline_.size());
  const int me = pipeline_.rank();
  size_t next = 0;  // index of the next part
  auto advance_to = [&](size_t part) {
    for (; next < part; ++next) {
      const int root = static_cast<int>(next % stages);
      auto told = broadcast_described(pipeline_, root);
      if (root == me) continue;
      for (; told.tensor.defined(); told = broadcast_described(pipeline_, root)) {
        const ToldParameter parameter = told_parameter(told.words);
        visitor({parameter.block, parameter.name, told.tensor, parameter.placement});
      }
    }
  };
  auto said_elsewhere = [&](const Placement& placement) {
    return std::ranges::any_of(placement.replicas, [&](const Replicas& held) {
      return held.ranks->rank() != 0 && std::ranges::any_of(tie_replicas_, [&](const auto& ours) {
               return ours.get() == held.ranks;
             });
    });
  };
  visit_own([&](const VisitedParameter& parameter) {
    if (said_elsewhere(parameter.placement)) return;
    const size_t block = block_index_.at(parameter.block);
    if (is_shared(block)) {
      if (block > 0) advance_to(parts_.size());
      const at::Tensor value = gather_whole(parameter.value, parameter.placement);
      return visitor({parameter.block, parameter.name, value, parameter.placement});
    }
    advance_to(std::max(next, part_of_block(block)));
    const at::Tensor value = gather_whole(parameter.value, parameter.placement).contiguous();
    const VisitedParameter whole{parameter.block, parameter.name, value, parameter.placement};
    broadcast_described(pipeline_, me, {words_of(whole), value});
    visitor(whole);
  });
  advance_to(parts_.size());
}

void Pipeline::visit_parameters(const ParameterVisitor& visitor) {
  visit([&](const ParameterVisitor& own) { inner_->visit_parameter_slices(own); }, visitor);
}

void Pipeline::visit_gradients(const ParameterVisitor& visitor) {
  visit([&](const ParameterVisitor& own) { inner_->visit_gradient_slices(own); }, visitor);
}

// A parameter on several stages is counted by one of them, or sliced between them.
NamedTensors Pipeline::gradient_norms() {
  const NamedTensors own = inner_->squared_norms();
  const at::NoGradGuard no_grad;
  std::string names;
  std::vector<at::Tensor> values;
  for (const auto& [name, value] : own) {
    names += name + "\n";
    values.push_back(value);
  }
  NamedTensors norms;
  std::map<std::string, size_t> places;
  for (int stage = 0; stage < pipeline_.size(); ++stage) {
    DescribedTensor told{names, values.empty() ? at::Tensor() : at::stack(values)};
    const DescribedTensor theirs =
        broadcast_described(pipeline_, stage, stage == pipeline_.rank() ? told : DescribedTensor());
    if (stage != pipeline_.rank()) told = theirs;
    int64_t count = 0;
    for (size_t begin = 0; begin < told.words.size(); ++count) {
      const size_t end = told.words.find('\n', begin);
      const std::string name = told.words.substr(begin, end - begin);
      begin = end + 1;
      const auto [place, added] = places.emplace(name, norms.size());
      if (added)
        norms.emplace_back(name, told.tensor[count].clone());
      else
        norms[place->second].second.add_(told.tensor[count]);
    }
  }
  for (auto& [name, value] : norms) value.sqrt_();
  return norms;
}

void Pipeline::visit_buffers(const ParameterVisitor& visitor) {
  visit([&](const ParameterVisitor& own) { inner_->visit_buffers(own); }, visitor);
}

at::Tensor Pipeline::forward(const MicroBatch&, const ForwardOptions&) {
  fail(ErrorCode::kInvalidArgument, "strategy ", name(),
       ": forward() is not offered under a pipeline, whose stages run their own schedule of "
       "micro-batches; give the loss to forward_backward(), or take a mesh without pipeline axis");
}

}  // namespace tessera
