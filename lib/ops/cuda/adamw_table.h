#pragma once
// What one launch of AdamW works on.
#include <cstdint>

namespace tessera::ops::cuda {

constexpr int kAdamWChunk = 1024;  // elements of a block of threads

struct AdamWEntry {
  float *parameter, *exp_avg, *exp_avg_sq;
  const void* gradient;
  void* low_precision;  // may be null
  int64_t count;
  float weight_decay, lr_factor;
};

struct AdamWTable {
  static constexpr int kMax = 48;
  AdamWEntry entries[kMax];
  int first_chunk[kMax + 1];
  int count = 0;

  bool full() const { return count == kMax; }
  // To a table that is not full; entries without elements are left out.
  void add(const AdamWEntry& entry) {
    if (entry.count == 0) return;
    if (count == 0) first_chunk[0] = 0;
    entries[count] = entry;
    const auto chunks = static_cast<int>((entry.count + kAdamWChunk - 1) / kAdamWChunk);
    first_chunk[count + 1] = first_chunk[count] + chunks;
    ++count;
  }
};

}  // namespace tessera::ops::cuda
