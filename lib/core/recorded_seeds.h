// SPDX-License-Identifier: MIT
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <utility>
#include <vector>

namespace tessera {

// What blocks draw at random for a micro-batch follows from its seed. Work that is recorded reads
// these seeds from the device, so that it draws anew for every micro-batch it runs for.
class RecordedSeeds {
 public:
  static constexpr int64_t kMost = 4096;

  explicit RecordedSeeds(at::Device device);

  // Where the seed lies that follows from the micro-batch's by rule: int64 [2], the seed and a 0,
  // written by write(). name: the same for the same rule.
  using Name = std::pair<uint64_t, uint64_t>;
  using Rule = std::function<uint64_t(uint64_t seed)>;
  at::Tensor place_of(const Name& name, const Rule& rule);
  // For the micro-batch with this seed, whose work comes next on the current stream.
  void write(uint64_t seed) const;

 private:
  at::Tensor values_;  // [kMost, 2]
  std::map<Name, int64_t> places_;
  std::vector<Rule> rules_;  // by place
};

}  // namespace tessera
