// SPDX-License-Identifier: MIT
#include "backends/common/state_blocks.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <string>

#include "lib/checkpoint/block_slice.h"
#include "tessera/core/error.h"

namespace tessera {

namespace {

// As another rank of the axis that cuts the parameter has it.
TensorSlice slice_of_rank(const FlatEntry& entry, const FlatRange& part, int rank) {
  TensorSlice slice;
  slice.shape = entry.shape;
  slice.begin = part.offset - entry.range.offset;
  slice.end = slice.begin + part.numel;
  const Communicator* cut = entry.placement.cut;
  if (cut == nullptr) return slice;
  const TensorShard& shard = entry.placement.shard;
  slice.dim = shard.dim;
  slice.local_size = entry.shape[shard.dim];
  slice.shape[shard.dim] = shard.full_size;
  const int64_t local = slice.local_size / shard.parts, whole = shard.full_size / shard.parts;
  const int64_t first = rank * local;  // in each part
  const int64_t size = std::min(local, whole - first);
  for (int64_t i = 0; i < shard.parts; ++i) {
    slice.intervals.push_back({i * local, i * whole + first, size});
  }
  return slice;
}

}  // namespace

TensorSlice slice_of_whole(const FlatEntry& entry, const FlatRange& part) {
  const Communicator* cut = entry.placement.cut;
  return slice_of_rank(entry, part, cut == nullptr ? 0 : cut->rank());
}

// Every rank looks at the slices of all, so that all refuse together.
void BlockCounts::add(const std::string& name, const FlatEntry& entry, const StateRules& rules,
                      bool of_experts) {
  ++trained;
  if (entry.small) return;
  ++large;
  const int ranks = entry.placement.cut == nullptr ? 1 : entry.placement.cut->size();
  std::string why;
  for (int rank = 0; rank < ranks && why.empty(); ++rank) {
    why = block_defect(slice_of_rank(entry, entry.range, rank), rules.block);
  }
  if (why.empty()) return;
  ++cut;
  const char* const axis = of_experts ? "expert" : "tensor";
  if (defect.empty()) {
    defect = concat("the ", axis, " axis cuts ", name, ": ", why, "; use fewer ", axis, " ranks");
  }
}

void BlockCounts::require(const StateRules& rules) const {
  check(cut == 0, ErrorCode::kInvalidArgument, "moments in 8 bits: ",
        defect.empty() ? "an axis cuts parameters of other ranks inside blocks; use fewer tensor "
                         "or expert ranks"
                       : defect,
        ", or moments in bf16 or fp32");
  check(large > 0 || trained == 0, ErrorCode::kInvalidArgument,
        "moments in 8 bits: no trained parameter has them: each has fewer than ", rules.small_numel,
        " elements (min_8bit_size), or is an embedding or a head; use moments in bf16 or fp32");
}

void require_blocks(const std::vector<ParameterUnit>& units, const StateRules& rules,
                    const ProcessGroups& ranks) {
  if (rules.block == 1) return;
  BlockCounts counts;
  for (const ParameterUnit& unit : units) {
    for (size_t e = 0; e < unit.layout.entries().size() && !unit.frozen && !unit.matrices; ++e) {
      counts.add(unit.placed[e].name, unit.layout.entries()[e], rules, unit.holders != nullptr);
    }
  }
  if (ranks.sharers > 1 && ranks.data.device().is_meta()) {
    counts.large = std::max<int64_t>(1, counts.large);  // on another stage, if not here
  } else if (ranks.sharers > 1) {
    const auto options = at::TensorOptions(at::kLong).device(ranks.data.device());
    const at::Tensor sums =
        at::tensor({counts.trained, counts.large, counts.cut}, at::kLong).to(options);
    ranks.world->all_reduce(sums).wait();
    const at::Tensor all = sums.cpu();
    counts.trained = all[0].item<int64_t>();
    counts.large = all[1].item<int64_t>();
    counts.cut = all[2].item<int64_t>();
  }
  counts.require(rules);
}

}  // namespace tessera
