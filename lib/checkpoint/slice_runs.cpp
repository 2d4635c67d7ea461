// SPDX-License-Identifier: MIT
#include "lib/checkpoint/slice_runs.h"

#include <ATen/ATen.h>
#include <c10/util/accumulate.h>

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>
#include <tuple>
#include <utility>

#include "tessera/core/error.h"

namespace tessera {
namespace {

int64_t product(const std::vector<int64_t>& shape, size_t begin) {
  return std::accumulate(shape.begin() + static_cast<std::ptrdiff_t>(begin), shape.end(),
                         int64_t{1}, std::multiplies<>());
}

}  // namespace

int64_t local_numel(const TensorSlice& slice) {
  int64_t numel = 1;
  for (size_t d = 0; d < slice.shape.size(); ++d) {
    numel *= static_cast<int>(d) == slice.dim ? slice.local_size : slice.shape[d];
  }
  return numel;
}

bool all_padding(const TensorSlice& slice) {
  return slice.dim >= 0 && std::ranges::all_of(slice.intervals, [](const auto& interval) {
           return interval.size == 0;
         });
}

SliceRuns::SliceRuns(const TensorSlice& slice) : slice_(slice) {
  if (slice.dim < 0) {  // one row with one interval
    const int64_t numel = product(slice.shape, 0);
    whole_ = {0, 0, numel};
    intervals_ = &whole_;
    interval_count_ = 1;
    inner_ = 1;
    local_row_ = global_row_ = numel;
  } else {
    const auto dim = static_cast<size_t>(slice.dim);
    intervals_ = slice.intervals.data();
    interval_count_ = static_cast<int64_t>(slice.intervals.size());
    inner_ = product(slice.shape, dim + 1);
    local_row_ = slice.local_size * inner_;
    global_row_ = slice.shape[dim] * inner_;
  }
  row_ = local_row_ > 0 ? slice.begin / local_row_ : 0;
}

void SliceRuns::seek(int64_t global) {
  if (global_row_ == 0 || global / global_row_ <= row_) return;
  row_ = global / global_row_;
  interval_ = 0;
}

bool SliceRuns::next(SliceRun& run) {
  if (interval_count_ == 0 || local_row_ == 0) return false;
  while (row_ * local_row_ < slice_.end) {
    const TensorSlice::Interval& interval = intervals_[interval_];
    const int64_t local = row_ * local_row_ + interval.local * inner_;
    const int64_t global = row_ * global_row_ + interval.global * inner_;
    if (++interval_ == interval_count_) {
      interval_ = 0;
      ++row_;
    }
    const int64_t begin = std::max(local, slice_.begin);
    const int64_t end = std::min(local + interval.size * inner_, slice_.end);
    if (begin >= end) continue;
    run = {begin - slice_.begin, global + begin - local, end - begin};
    return true;
  }
  return false;
}

void for_each_overlap(const TensorSlice& a, const TensorSlice& b, const OverlapFn& fn) {
  check(a.shape == b.shape, ErrorCode::kInternal, "slices of tensors of the shapes ",
        c10::IntArrayRef(a.shape), " and ", c10::IntArrayRef(b.shape), " have nothing in common");
  SliceRuns runs_a(a), runs_b(b);
  SliceRun run_a, run_b;
  bool more = runs_a.next(run_a) && runs_b.next(run_b);
  while (more) {
    const int64_t begin = std::max(run_a.global, run_b.global);
    const int64_t end_a = run_a.global + run_a.size, end_b = run_b.global + run_b.size;
    if (begin < std::min(end_a, end_b)) {
      fn(run_a.local + begin - run_a.global, run_b.local + begin - run_b.global,
         std::min(end_a, end_b) - begin);
    }
    if (end_a <= end_b) {
      runs_a.seek(run_b.global);
      more = runs_a.next(run_a);
    } else {
      runs_b.seek(run_a.global);
      more = runs_b.next(run_b);
    }
  }
}

void write_slice(const TensorSlice& slice, const at::Tensor& whole, const at::Tensor& local) {
  const at::Tensor flat = whole.to(local.options()).reshape({-1});
  SliceRuns runs(slice);
  for (SliceRun run; runs.next(run);) {
    local.narrow(0, run.local, run.size).copy_(flat.narrow(0, run.global, run.size));
  }
}

int64_t held_numel(const TensorSlice& slice) {
  SliceRuns runs(slice);
  SliceRun run;
  int64_t numel = 0;
  while (runs.next(run)) numel += run.size;
  return numel;
}

std::string slice_defect(const TensorSlice& slice) {
  // Checks the whole and the local tensor; no partial product of extents may overflow.
  int64_t whole = 1, local = 1;
  for (size_t d = 0; d < slice.shape.size(); ++d) {
    const int64_t extent = slice.shape[d];
    const int64_t here = static_cast<int>(d) == slice.dim ? slice.local_size : extent;
    if (extent < 0 || here < 0) return "an extent is negative";
    if (__builtin_mul_overflow(whole, std::max<int64_t>(extent, 1), &whole) ||
        __builtin_mul_overflow(local, std::max<int64_t>(here, 1), &local)) {
      return "its size overflows";
    }
  }
  if (slice.dim < -1 || slice.dim >= static_cast<int>(slice.shape.size())) {
    return concat("dimension ", slice.dim, " of ", slice.shape.size(), " is sliced");
  }
  if (slice.dim < 0 && (!slice.intervals.empty() || slice.local_size != 0)) {
    return "intervals of a tensor that is not sliced";
  }
  int64_t local_end = 0, global_end = 0;
  for (const auto& [from, to, size] : slice.intervals) {
    if (from < local_end || to < global_end || size < 0) return "its intervals are out of order";
    if (from > slice.local_size - size || to > slice.shape[static_cast<size_t>(slice.dim)] - size) {
      return "an interval leaves the tensor";
    }
    local_end = from + size;
    global_end = to + size;
  }
  if (slice.begin < 0 || slice.end < slice.begin || slice.end > local_numel(slice)) {
    return concat("elements [", slice.begin, ", ", slice.end, ") of a local tensor of ",
                  local_numel(slice));
  }
  return "";
}

namespace {

using Ranges = std::vector<std::pair<int64_t, int64_t>>;  // [begin, end)

// "" if the ranges tile [0, size) exactly; else the defect.
std::string fill_defect(Ranges ranges, int64_t size, const char* what) {
  std::ranges::sort(ranges);
  int64_t filled = 0;
  for (const auto& [begin, end] : ranges) {
    if (begin == end) continue;
    if (begin > filled) return concat(what, " [", filled, ", ", begin, ") are in no piece");
    if (begin < filled) {
      return concat(what, " [", begin, ", ", std::min(filled, end), ") are in two pieces");
    }
    filled = end;
  }
  return filled == size ? "" : concat(what, " [", filled, ", ", size, ") are in no piece");
}

}  // namespace

std::string tiling_defect(const std::vector<TensorSlice>& slices) {
  if (slices.empty()) return "it has no pieces";
  const TensorSlice& first = slices.front();
  // Local tensors, identified by extent and intervals.
  using Local = std::pair<int64_t, std::vector<std::tuple<int64_t, int64_t, int64_t>>>;
  std::map<Local, std::vector<const TensorSlice*>> locals;
  for (const TensorSlice& slice : slices) {
    if (slice.shape != first.shape) return "its pieces differ in shape";
    if (slice.dim != first.dim) return "its pieces are cut along different dimensions";
    if (all_padding(slice)) continue;
    Local local{slice.local_size, {}};
    for (const auto& [from, to, size] : slice.intervals) local.second.emplace_back(from, to, size);
    locals[local].push_back(&slice);
  }
  Ranges of_dim;
  for (const auto& [local, parts] : locals) {
    Ranges ranges;
    for (const TensorSlice* part : parts) ranges.emplace_back(part->begin, part->end);
    const std::string defect =
        fill_defect(ranges, local_numel(*parts.front()), "elements of the local tensor");
    if (!defect.empty()) return defect;
    for (const auto& [from, to, size] : local.second) of_dim.emplace_back(to, to + size);
  }
  if (first.dim < 0 || product(first.shape, 0) == 0) return "";
  return fill_defect(of_dim, first.shape[static_cast<size_t>(first.dim)],
                     "indices of the sliced dimension");
}

}  // namespace tessera
