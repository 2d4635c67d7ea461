// SPDX-License-Identifier: MIT
#include "tessera/core/key_value_cache.h"

#include <ATen/ATen.h>

#include "tessera/core/error.h"

namespace tessera {

const KeyValueCache::Part& KeyValueCache::part_of(const void* block, const at::Tensor& keys,
                                                  bool end_to_end) {
  check(end_to_end || (keys.size(0) == rows_ && keys.size(1) <= capacity_),
        ErrorCode::kInvalidArgument, "a key/value cache of ", rows_, " rows and ", capacity_,
        " tokens was given keys of shape ", keys.sizes());
  Part& part = parts_[block];
  if (!part.keys.defined()) {
    const std::vector<int64_t> shape{rows_, capacity_, keys.size(2), keys.size(3)};
    part = {at::zeros(shape, keys.options()), at::zeros(shape, keys.options())};
  }
  return part;
}

void KeyValueCache::begin(const void* block, const at::Tensor& keys, const at::Tensor& values) {
  const Part& part = part_of(block, keys);
  part.keys.narrow(1, 0, keys.size(1)).copy_(keys);
  part.values.narrow(1, 0, values.size(1)).copy_(values);
}

int64_t KeyValueCache::bytes() const {
  size_t sum = 0;
  for (const auto& [block, part] : parts_) sum += part.keys.nbytes() + part.values.nbytes();
  return static_cast<int64_t>(sum);
}

}  // namespace tessera
