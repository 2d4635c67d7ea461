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

UnitGrouping::UnitGrouping(const ShardingRules& rules, Close close)
    : unit_numel_(rules.unit_numel),
      message_numel_(rules.message_numel),
      close_(std::move(close)) {}

void UnitGrouping::add(size_t block, Parameter parameter, bool apart, const at::Tensor& scale,
                       std::optional<size_t> product) {
  if (product && !apart) {
    UnitMembers& codes = parameter.rule.whole_matrix ? matrix_codes_ : trained_codes_;
    codes.add(block, std::move(parameter));
    codes.products.push_back(*product);
    return;
  }
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
                        trained_codes_.numel + matrix_codes_.numel;
  if (!ends_unit && numel < unit_numel_) return;
  close(trained_);
  close(matrices_);
  close(frozen_);
  close(coded_);
  close(trained_codes_);
  close(matrix_codes_);
  turn_numel_ += numel;
  if (!ends_unit && turn_numel_ < message_numel_) return;
  turn_numel_ = 0;
  ++gather_group_;
}

UnitMembers& UnitGrouping::open_for(const Parameter& parameter) {
  if (parameter.placement.frozen) return frozen_;
  return parameter.rule.whole_matrix ? matrices_ : trained_;
}

void UnitGrouping::close(UnitMembers& open) {
  if (open.parameters.empty()) return;
  open.gather_group = gather_group_;
  close_(std::exchange(open, {}));
}

}  // namespace tessera
