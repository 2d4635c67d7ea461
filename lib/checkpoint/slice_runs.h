// SPDX-License-Identifier: MIT
#pragma once
// Slices of a tensor as contiguous runs, and what two slices have in common.
#include <cstdint>
#include <functional>
#include <string>

#include "tessera/checkpoint/state.h"

namespace tessera {

// Elements that lie side by side in the slice and in the whole tensor alike.
struct SliceRun {
  int64_t local = 0;   // first element, counted from the slice's begin
  int64_t global = 0;  // the same element in the row-major whole
  int64_t size = 0;
};

// The runs of a valid slice in the order of the whole tensor, padding left out.
class SliceRuns {
 public:
  explicit SliceRuns(const TensorSlice& slice);
  // The first run that ends behind this element of the whole, or none.
  void seek(int64_t global);
  bool next(SliceRun& run);

 private:
  const TensorSlice& slice_;
  TensorSlice::Interval whole_;  // of a slice without a sliced dimension
  const TensorSlice::Interval* intervals_;
  int64_t interval_count_, inner_, local_row_, global_row_;
  int64_t row_ = 0, interval_ = 0;  // of the next run
};

// Calls fn(in a, in b, size) for the runs of elements that both slices have: the places count from
// each slice's begin. Throws Error(kInternal) when the whole tensors differ in shape.
using OverlapFn = std::function<void(int64_t in_a, int64_t in_b, int64_t size)>;
void for_each_overlap(const TensorSlice& a, const TensorSlice& b, const OverlapFn& fn);

// Writes the slice's elements of the whole tensor into the local one [local_numel(slice)], in its
// dtype and on its device; padding keeps its value.
void write_slice(const TensorSlice& slice, const at::Tensor& whole, const at::Tensor& local);

// Elements of the slice that are not padding.
int64_t held_numel(const TensorSlice& slice);

// What is wrong with a slice, or "": sizes that are negative or overflow, intervals that overlap,
// are out of order or leave the tensor, a range that leaves the local tensor.
std::string slice_defect(const TensorSlice& slice);

// What is wrong with slices that are to make up one whole tensor, or "". They must be cut along the
// same dimension; those with the same intervals are parts of one local tensor and must fill it,
// padding included; together the intervals must fill the dimension. Local tensors of nothing but
// padding do not count.
std::string tiling_defect(const std::vector<TensorSlice>& slices);

// Of the local tensor, padding included.
int64_t local_numel(const TensorSlice& slice);
// The local tensor has nothing of the whole.
bool all_padding(const TensorSlice& slice);

}  // namespace tessera
