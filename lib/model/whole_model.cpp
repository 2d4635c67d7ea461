// SPDX-License-Identifier: MIT
#include "tessera/model/whole_model.h"

#include <ATen/ATen.h>

#include <map>

#include "tessera/core/error.h"

namespace tessera {

WholeModel::WholeModel(const ModelSpec& spec, const BuildContext& context) : name_(spec.name) {
  using Key = std::pair<std::string, std::string>;
  std::map<Key, Parameter> by_name;
  std::map<Key, Key> owner_of;
  for (const auto& tie : spec.tied) {
    owner_of[{tie.alias_block, tie.alias_parameter}] = {tie.owner_block, tie.owner_parameter};
  }
  for (const auto& builder : spec.blocks) {
    blocks_.push_back(builder.build(context));
    for (auto& parameter : blocks_.back()->parameters()) {
      by_name[{builder.name, parameter.name}] = parameter;
      if (owner_of.contains({builder.name, parameter.name})) continue;
      if (parameter.tensor.requires_grad()) {
        parameter.tensor.mutable_grad() = at::zeros_like(parameter.tensor);
      }
      parameter.name = spec.stored_name(builder.name, parameter.name);
      parameters_.push_back(parameter);
    }
  }
  for (const auto& [alias, owner] : owner_of) {
    check(by_name.contains(alias) && by_name.contains(owner), ErrorCode::kInvalidArgument, "model ",
          name_, ": tied parameter ", owner.first, " ", owner.second, " or ", alias.first, " ",
          alias.second, " does not exist");
    by_name[alias].tensor.set_data(by_name[owner].tensor.detach());
    by_name[alias].tensor.mutable_grad() = by_name[owner].tensor.grad();
  }
}

at::Tensor WholeModel::run_body(const MicroBatch& micro_batch, const BlockContext& context) {
  at::Tensor hidden;
  for (size_t i = 0; i + 1 < blocks_.size(); ++i) {
    hidden = blocks_[i]->forward(hidden, micro_batch, context);
  }
  return hidden;
}

at::Tensor WholeModel::forward(const MicroBatch& micro_batch, const BlockContext& context) {
  return blocks_.back()->forward(run_body(micro_batch, context), micro_batch, context);
}

at::Tensor WholeModel::logits(const MicroBatch& micro_batch, const BlockContext& context) {
  auto* head = dynamic_cast<Head*>(blocks_.back().get());
  check(head != nullptr, ErrorCode::kInvalidArgument, "model ", name_,
        ": its last block has no logits");
  return head->logits(run_body(micro_batch, context), micro_batch, context);
}

}  // namespace tessera
