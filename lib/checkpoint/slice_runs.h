// SPDX-License-Identifier: MIT
#pragma once
// Slices of a tensor as contiguous runs, and overlaps of two slices.
#include <cstdint>
#include <functional>
#include <string>

#include "tessera/checkpoint/state.h"

namespace tessera {

// Elements contiguous in both the slice and the whole tensor.
struct SliceRun {
  int64_t local = 0;   // first element, relative to the slice's begin
  int64_t global = 0;  // the same element in the row-major whole tensor
  int64_t size = 0;
};

// Runs of a valid slice in the order of the whole tensor, without padding.
class SliceRuns {
 public:
  explicit SliceRuns(const TensorSlice& slice);
  // Moves to the first run that ends after this element of the whole tensor.
  void seek(int64_t global);
  bool next(SliceRun& run);

 private:
  const TensorSlice& slice_;
  TensorSlice::Interval whole_;  // for a slice without a sliced dimension
  const TensorSlice::Interval* intervals_;
  int64_t interval_count_, inner_, local_row_, global_row_;
  int64_t row_ = 0, interval_ = 0;  // of the next run
};

// Calls fn(in a, in b, size) for runs of common elements; positions are relative to each slice's
// begin. Throws Error(kInternal) if the whole tensors' shapes differ.
using OverlapFn = std::function<void(int64_t in_a, int64_t in_b, int64_t size)>;
void for_each_overlap(const TensorSlice& a, const TensorSlice& b, const OverlapFn& fn);

// Copies the slice's elements from the whole tensor to the local one [local_numel(slice)], with its
// dtype and device; padding is unchanged.
void write_slice(const TensorSlice& slice, const at::Tensor& whole, const at::Tensor& local);

// Elements of the slice without padding.
int64_t held_numel(const TensorSlice& slice);

// Defect of a slice, or "": negative or overflowing sizes; intervals that overlap, are unordered or
// exceed the tensor; a range that exceeds the local tensor.
std::string slice_defect(const TensorSlice& slice);

// Defect of slices that should form one whole tensor, or "". All must be cut along one dimension.
// Slices with equal intervals are parts of one local tensor and must tile it, padding included. All
// intervals together must tile the dimension. Local tensors of padding only are ignored.
std::string tiling_defect(const std::vector<TensorSlice>& slices);

// Elements of the local tensor, padding included.
int64_t local_numel(const TensorSlice& slice);
// True if the local tensor holds padding only.
bool all_padding(const TensorSlice& slice);

}  // namespace tessera
