// SPDX-License-Identifier: MIT
#pragma once
// Arguments of one AdamW launch: a table of ranges.
#include <cstdint>

namespace tessera::ops::cuda {

constexpr int kAdamWChunk = 1024;  // elements per thread block

struct AdamWEntry {
  float *parameter, *exp_avg, *exp_avg_sq;
  const void* gradient;
  void* low_precision;  // may be null
  int16_t* remainder;   // for split masters, whose parameter is null; else null
  int64_t count;
  double weight_decay, lr_factor;
};

// Moments in bf16, or in 8-bit codes with block scales.
struct AdamWMomentsEntry {
  float* parameter;
  void *exp_avg, *exp_avg_sq;
  float *exp_avg_largest, *exp_avg_sq_largest;  // of 8-bit codes
  const void* gradient;
  void* low_precision;  // may be null
  int16_t* remainder;   // as in AdamWEntry
  int64_t count;
  double weight_decay, lr_factor;
};

template <typename Entry, int kMost>
struct AdamWTableOf {
  static constexpr int kMax = kMost;
  Entry entries[kMax];
  int first_chunk[kMax + 1];
  int count = 0;

  bool full() const { return count == kMax; }
  // Adds to a table that is not full; empty entries are dropped.
  void add(const Entry& entry) {
    if (entry.count == 0) return;
    if (count == 0) first_chunk[0] = 0;
    entries[count] = entry;
    const auto chunks = static_cast<int>((entry.count + kAdamWChunk - 1) / kAdamWChunk);
    first_chunk[count + 1] = first_chunk[count] + chunks;
    ++count;
  }
};
using AdamWTable = AdamWTableOf<AdamWEntry, 48>;
using AdamWMomentsTable = AdamWTableOf<AdamWMomentsEntry, 40>;

}  // namespace tessera::ops::cuda
