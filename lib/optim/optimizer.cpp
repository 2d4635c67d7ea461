#include "tessera/optim/optimizer.h"

#include <algorithm>

#include "tessera/core/error.h"

namespace tessera {

std::vector<RangePiece> pieces_of(const OptimizerRange& range) {
  std::vector<RangePiece> pieces;
  const int64_t end = range.begin + range.parameter.numel();
  for (const PlacedParameter& placed : range.placed) {
    const int64_t from = std::max(placed.begin, range.begin);
    const int64_t until = std::min(placed.begin + placed.numel, end);
    if (from >= until) continue;
    pieces.push_back({placed, from - placed.begin, from - range.begin, until - from});
  }
  return pieces;
}

void refuse_betas(std::span<const OptimizerRange> ranges, const std::string& optimizer) {
  for (const OptimizerRange& range : ranges) {
    check(!range.rule.betas, ErrorCode::kInvalidArgument, "parameter group \"", range.rule.group,
          "\" sets betas, which ", optimizer, " does not have");
  }
}

}  // namespace tessera
