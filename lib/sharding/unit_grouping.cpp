// SPDX-License-Identifier: MIT
#include "lib/sharding/unit_grouping.h"

#include <utility>

namespace tessera {

void UnitMembers::add(size_t block, Parameter parameter) {
  if (users.empty() || users.back() != block) users.push_back(block);
  block_of.push_back(block);
  numel += parameter.tensor.numel();
  parameters.push_back(std::move(parameter));
}

UnitGrouping::UnitGrouping(const ShardingRules& rules, Close close, const Communicator* expert)
    : unit_numel_(rules.unit_numel),
      message_numel_(rules.message_numel),
      close_(std::move(close)),
      expert_(expert) {}

void UnitGrouping::add(size_t block, Parameter parameter, bool apart, const at::Tensor& scale) {
  if (scale.defined() && !apart) {
    coded_.add(block, std::move(parameter));
    coded_.scales.push_back(scale);
    return;
  }
  if (!apart) {
    open_for(parameter).add(block, std::move(parameter));
    return;
  }
  UnitMembers alone;
  alone.apart = true;
  alone.add(block, std::move(parameter));
  close(alone);
}

void UnitGrouping::end_block(bool ends_unit) {
  const int64_t numel = trained_.numel + matrices_.numel + frozen_.numel + coded_.numel +
                        trained_experts_.numel + frozen_experts_.numel;
  if (!ends_unit && numel < unit_numel_) return;
  close(trained_);
  close(matrices_);
  close(frozen_);
  close(coded_);
  close(trained_experts_);
  close(frozen_experts_);
  turn_numel_ += numel;
  if (!ends_unit && turn_numel_ < message_numel_) return;
  turn_numel_ = 0;
  ++gather_group_;
}

UnitMembers& UnitGrouping::open_for(const Parameter& parameter) {
  if (expert_ != nullptr && parameter.placement.cut == expert_) {
    return parameter.placement.frozen ? frozen_experts_ : trained_experts_;
  }
  if (parameter.placement.frozen) return frozen_;
  return parameter.rule.whole_matrix ? matrices_ : trained_;
}

void UnitGrouping::close(UnitMembers& open) {
  if (open.parameters.empty()) return;
  open.gather_group = gather_group_;
  close_(std::exchange(open, {}));
}

}  // namespace tessera
