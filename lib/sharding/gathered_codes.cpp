// SPDX-License-Identifier: MIT
#include "lib/sharding/gathered_codes.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>

#include "lib/comm/operation_scope.h"
#include "lib/ops/fp8.h"
#include "tessera/core/error.h"

namespace tessera {
namespace {

constexpr at::ScalarType kCodes = at::kFloat8_e4m3fn;

}  // namespace

GatheredCodes::GatheredCodes(const std::vector<ParameterUnit>& units, Communicator& shards)
    : units_(units), shards_(shards), parts_(units.size()), whole_(units.size()) {
  for (const ParameterUnit& unit : units_) {
    if (!unit.gathers_codes()) continue;
    ++coded_;
    check(unit.layout.resident_begin() == unit.layout.numel(), ErrorCode::kInternal, "block ",
          unit.name, " gathers codes of parameters that stay unsharded");
    for (const size_t product : unit.products) {
      products_ = std::max(products_, static_cast<int64_t>(product) + 1);
    }
    for (const FlatEntry& entry : unit.layout.entries()) {
      Communicator* const cut = entry.placement.cut;
      if (cut == nullptr || cut->size() == 1) continue;
      if (std::ranges::find(cuts_, cut) == cuts_.end()) cuts_.push_back(cut);
    }
  }
}

// Padding, of zeros, goes with the entry before it: a part is a multiple of the layout's alignment,
// as kernels like it.
void GatheredCodes::add(size_t unit, size_t segment, const at::Tensor& values,
                        const at::Tensor& codes) {
  const FlatLayout& layout = units_[unit].layout;
  const FlatRange owned = layout.owned(segment, shards_.rank());
  const auto& entries = layout.entries();
  whole_[unit].push_back({values, codes});
  for (size_t e = 0; e < entries.size(); ++e) {
    const int64_t end = e + 1 == entries.size() ? layout.numel() : entries[e + 1].range.offset;
    const FlatRange part = overlap({entries[e].range.offset, end - entries[e].range.offset}, owned);
    if (part.numel == 0) continue;
    parts_[unit].push_back({slice_of(values, part, owned.offset).unsqueeze(0),
                            slice_of(codes, part, owned.offset).unsqueeze(0),
                            units_[unit].products[e]});
  }
}

void GatheredCodes::finalize() {
  if (coded_ == 0) return;
  const auto options = at::TensorOptions(at::kFloat).device(shards_.device());
  std::vector<int64_t> count(static_cast<size_t>(products_));
  for (const std::vector<Part>& parts : parts_) {
    for (const Part& part : parts) most_parts_ = std::max(most_parts_, ++count[part.product]);
  }
  largest_ = at::zeros({products_, 1}, options);
  scales_ = at::zeros({products_, 4}, options);
  zeros_ = at::zeros({products_, 16}, options);
}

void GatheredCodes::publish(size_t unit) {
  if (!is_stale_) published_.clear();
  is_stale_ = true;
  published_.insert(unit);
}

void GatheredCodes::agree() {
  const ForTensor of("scales of weights in 8 bits");
  // By product, filled with zeros where this rank has fewer parts of one than of another.
  const auto width = static_cast<size_t>(most_parts_);
  std::vector<at::Tensor> found(static_cast<size_t>(products_) * width,
                                zeros_.flatten().narrow(0, 0, 1));
  std::vector<size_t> next(static_cast<size_t>(products_));
  for (const std::vector<Part>& parts : parts_) {
    for (const Part& part : parts) {
      found[part.product * width + next[part.product]++] =
          ops::fp8_largest(part.values, Fp8::kTensorwise).flatten();
    }
  }
  largest_.copy_(at::cat(found).view({products_, most_parts_}).amax(1, /*keepdim=*/true));
  shards_.all_reduce(largest_, ReduceOp::kMax).wait();
  for (Communicator* const cut : cuts_) cut->all_reduce(largest_, ReduceOp::kMax).wait();
  // The scale that any cast of the product's values takes.
  scales_.narrow(1, 0, 1).copy_(ops::fp8_cast(zeros_, largest_, kCodes).scale);
  published_.clear();
  is_stale_ = false;
}

void GatheredCodes::form(size_t unit) {
  const at::NoGradGuard no_grad;
  if (is_stale_) agree();
  for (const Part& part : parts_[unit]) {
    const at::Tensor largest = largest_.narrow(0, static_cast<int64_t>(part.product), 1);
    const at::Tensor codes = ops::fp8_cast(part.values, largest, kCodes).codes;
    part.codes.view(at::kByte).copy_(codes.view(at::kByte));
  }
  for (const auto& [values, codes] : whole_[unit]) {
    if (codes.is_meta()) codes.copy_(values);  // dry runs follow values by copies
  }
}

at::Tensor GatheredCodes::scale(size_t unit, size_t entry) const {
  return scales_.select(1, 0)[static_cast<int64_t>(units_[unit].products[entry])];
}

int64_t GatheredCodes::bytes() const {
  if (coded_ == 0) return 0;
  return static_cast<int64_t>(largest_.nbytes() + scales_.nbytes() + zeros_.nbytes());
}

}  // namespace tessera
