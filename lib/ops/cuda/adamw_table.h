// SPDX-License-Identifier: MIT
#pragma once
// What one launch of AdamW works on.
#include <cstdint>

namespace tessera::ops::cuda {

constexpr int kAdamWChunk = 1024;  // elements of a block of threads

struct AdamWEntry {
  float *parameter, *exp_avg, *exp_avg_sq;
  const void* gradient;
  void* low_precision;  // may be null
  int16_t* remainder;   // of split masters, whose parameter is null; else null
  int64_t count;
  double weight_decay, lr_factor;
};

// Moments in bf16, or 8-bit codes with the largest magnitudes of their blocks.
struct AdamWMomentsEntry {
  float* parameter;
  void *exp_avg, *exp_avg_sq;
  float *exp_avg_largest, *exp_avg_sq_largest;  // of codes
  const void* gradient;
  void* low_precision;  // may be null
  int16_t* remainder;   // as above
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
  // To a table that is not full; entries without elements are left out.
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
