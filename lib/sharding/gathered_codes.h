// SPDX-License-Identifier: MIT
#pragma once
// 8-bit codes of trained matrices whose shards are in the compute dtype, for gathers.
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <set>
#include <vector>

#include "tessera/comm/communicator.h"
#include "tessera/sharding/unit.h"

namespace tessera {

// [Note: codes of shards]
// A rank casts its part of a matrix by the scale of the whole one. Scales of all matrices are
// agreed on together: one all-reduce of largest magnitudes after an update, and another where a
// tensor axis cuts matrices. Values are those of the compute dtype, and a maximum has no order, so
// codes and scales have the bits that a rank with whole matrices forms. Codes are formed in the
// buffer into which they are gathered: none outlives the values from which it was cast.
class GatheredCodes {
 public:
  // Units, and the ranks over which their values are divided, outlive it.
  GatheredCodes(const std::vector<ParameterUnit>& units, Communicator& shards);

  // This rank's values of a segment of a unit that gathers codes, and the place of their codes.
  void add(size_t unit, size_t segment, const at::Tensor& values, const at::Tensor& codes);
  // Ends add().
  void finalize();

  // The unit's values have changed.
  void publish(size_t unit);
  // Whether all units were published since scales were agreed on, or none was.
  bool is_ready() const { return !is_stale_ || published_.size() == coded_; }
  // Forms this rank's codes on the current stream. Collective after publish(): agrees on scales.
  void form(size_t unit);

  // fp32 [], at a multiple of 16 bytes and a constant address.
  at::Tensor scale(size_t unit, size_t entry) const;
  int64_t bytes() const;  // of scales and magnitudes

 private:
  struct Part {
    at::Tensor values, codes;  // [1, n]
    size_t product = 0;
  };
  struct Segment {
    at::Tensor values, codes;
  };
  void agree();

  const std::vector<ParameterUnit>& units_;
  Communicator& shards_;
  std::vector<Communicator*> cuts_;          // tensor axes that cut matrices
  std::vector<std::vector<Part>> parts_;     // by unit
  std::vector<std::vector<Segment>> whole_;  // by unit
  size_t coded_ = 0;                         // units
  int64_t products_ = 0, most_parts_ = 1;    // most_parts_: of a product, on this rank
  at::Tensor largest_;                       // fp32 [products, 1]
  at::Tensor scales_;                        // fp32 [products, 4], of which the first counts
  at::Tensor zeros_;                         // [products, 16]
  std::set<size_t> published_;               // units, since scales were agreed on
  bool is_stale_ = true;
};

}  // namespace tessera
