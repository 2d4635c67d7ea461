// SPDX-License-Identifier: MIT
#include "tessera/optim/optimizer.h"

#include <ATen/ops/empty.h>

#include <algorithm>

#include "tessera/core/error.h"
#include "tessera/optim/matrix_optimizer.h"

namespace tessera {

std::vector<RangePiece> pieces_of(const OptimizerRange& range) {
  std::vector<RangePiece> pieces;
  const int64_t end = range.begin + range.numel();
  for (const PlacedParameter& placed : range.placed) {
    const int64_t from = std::max(placed.begin, range.begin);
    const int64_t until = std::min(placed.begin + placed.numel, end);
    if (from >= until) continue;
    pieces.push_back({placed, from - placed.begin, from - range.begin, until - from});
  }
  return pieces;
}

std::vector<StateFormat> Optimizer::state_formats(bool) const {
  std::vector<StateFormat> formats;
  for (const std::string& name : state_names()) formats.push_back({.name = name});
  return formats;
}

StateNeeds state_needs(const OptimizerFactory& factory) {
  if (const WholeMatrices* matrices = whole_matrices(factory)) {
    return state_needs(matrices->others);
  }
  const at::Tensor nothing = at::empty({0}, at::kFloat);
  const auto optimizer = factory({{.parameter = nothing, .gradient = nothing}});
  const auto bytes = [&](bool small) {
    double sum = 0;
    for (const StateFormat& format : optimizer->state_formats(small)) {
      sum += format.bytes_per_element();
    }
    return sum;
  };
  return {optimizer->state_rules(), bytes(false), bytes(true), optimizer->splits_masters()};
}

void refuse_betas(std::span<const OptimizerRange> ranges, const std::string& optimizer) {
  for (const OptimizerRange& range : ranges) {
    check(!range.rule.betas, ErrorCode::kInvalidArgument, "parameter group \"", range.rule.group,
          "\" sets betas, which ", optimizer, " does not have");
  }
}

}  // namespace tessera
