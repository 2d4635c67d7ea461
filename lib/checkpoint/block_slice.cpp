// SPDX-License-Identifier: MIT
#include "lib/checkpoint/block_slice.h"

#include <ATen/core/Tensor.h>
#include <c10/util/accumulate.h>

#include <algorithm>

#include "tessera/core/error.h"

namespace tessera {
namespace {

int64_t blocks_in(int64_t numel, int64_t block) { return (numel + block - 1) / block; }

bool by_rows(const std::vector<int64_t>& shape, int64_t block) {
  return !shape.empty() && shape.back() > 0 && shape.back() % block == 0;
}

// Elements per index of the sliced dimension, in the rows that blocks follow.
int64_t elements_of_index(const TensorSlice& slice, int64_t block) {
  const auto after = static_cast<size_t>(slice.dim) + 1;
  if (by_rows(slice.shape, block)) return after == slice.shape.size() ? 1 : block;
  return c10::multiply_integers(c10::IntArrayRef(slice.shape).slice(after));
}

}  // namespace

std::vector<int64_t> shape_in_blocks(const std::vector<int64_t>& shape, int64_t block) {
  if (!by_rows(shape, block)) return {blocks_in(c10::multiply_integers(shape), block)};
  std::vector<int64_t> blocks = shape;
  blocks.back() /= block;
  return blocks;
}

std::string block_defect(const TensorSlice& slice, int64_t block) {
  if (slice.dim < 0) return "";
  const auto dim = static_cast<size_t>(slice.dim);
  const c10::IntArrayRef shape = slice.shape;
  const int64_t each = elements_of_index(slice, block), size = shape[dim] * each;
  const bool alone = c10::multiply_integers(shape.slice(0, dim)) == 1;
  bool fits = alone || (by_rows(slice.shape, block) && slice.local_size * each % block == 0);
  for (const TensorSlice::Interval& interval : slice.intervals) {
    const int64_t end = (interval.global + interval.size) * each;
    fits = fits && interval.local * each % block == 0 && interval.global * each % block == 0 &&
           (end % block == 0 || end == size);
  }
  if (fits) return "";
  return concat("slices of dimension ", slice.dim, " of shape ", shape,
                " begin or end inside blocks of ", block, " elements");
}

TensorSlice slice_in_blocks(const TensorSlice& slice, int64_t block) {
  check(slice.begin % block == 0, ErrorCode::kInternal, "a slice from element ", slice.begin,
        " does not begin with a block of ", block);
  const std::string defect = block_defect(slice, block);
  check(defect.empty(), ErrorCode::kInternal, defect);
  TensorSlice blocks;
  blocks.shape = shape_in_blocks(slice.shape, block);
  blocks.begin = slice.begin / block;
  blocks.end = blocks_in(slice.end, block);
  if (slice.dim < 0) return blocks;
  const int64_t each = elements_of_index(slice, block);
  blocks.dim = by_rows(slice.shape, block) ? slice.dim : 0;
  blocks.local_size = blocks_in(slice.local_size * each, block);
  for (const TensorSlice::Interval& interval : slice.intervals) {
    blocks.intervals.push_back({interval.local * each / block, interval.global * each / block,
                                blocks_in(interval.size * each, block)});
  }
  return blocks;
}

}  // namespace tessera
