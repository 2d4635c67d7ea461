// SPDX-License-Identifier: MIT
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <utility>
#include <vector>

namespace tessera {

// Seeds in device memory for captured work. A block's random draws follow from the micro-batch's
// seed; replays read it here, so that each micro-batch draws anew.
class RecordedSeeds {
 public:
  static constexpr int64_t kMost = 4096;

  explicit RecordedSeeds(at::Device device);

  // Memory of the seed that `rule` derives from the micro-batch's: int64 [2], the seed and a 0,
  // filled by write(). name: identifies the rule.
  using Name = std::pair<uint64_t, uint64_t>;
  using Rule = std::function<uint64_t(uint64_t seed)>;
  at::Tensor place_of(const Name& name, const Rule& rule);
  // Writes all seeds for the micro-batch whose work comes next on the current stream.
  void write(uint64_t seed) const;

 private:
  at::Tensor values_;  // [kMost, 2]
  std::map<Name, int64_t> places_;
  std::vector<Rule> rules_;  // by row of values_
};

}  // namespace tessera
