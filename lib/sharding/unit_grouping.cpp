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

void UnitGrouping::add(size_t block, Parameter parameter, bool apart, const at::Tensor& scale,
                       std::optional<size_t> product) {
  if (apart) {
    UnitMembers alone;
    alone.apart = true;
    alone.add(block, std::move(parameter));
    return close(alone);
  }
  const Kind kind{.experts = expert_ != nullptr && parameter.placement.cut == expert_,
                  .frozen = parameter.placement.frozen,
                  .in_codes = product.has_value() || scale.defined(),
                  .matrices = !parameter.placement.frozen && parameter.rule.whole_matrix};
  UnitMembers& open = open_[kind];
  open.add(block, std::move(parameter));
  if (product) open.products.push_back(*product);
  if (scale.defined() && !product) open.scales.push_back(scale);
}

void UnitGrouping::end_block(bool ends_unit) {
  int64_t numel = 0;
  for (const auto& [kind, open] : open_) numel += open.numel;
  if (!ends_unit && numel < unit_numel_) return;
  for (auto& [kind, open] : open_) close(open);
  turn_numel_ += numel;
  if (!ends_unit && turn_numel_ < message_numel_) return;
  turn_numel_ = 0;
  ++gather_group_;
}

void UnitGrouping::close(UnitMembers& open) {
  if (open.parameters.empty()) return;
  open.gather_group = gather_group_;
  close_(std::exchange(open, {}));
}

}  // namespace tessera
