// SPDX-License-Identifier: MIT
#pragma once
// Rows whose tokens identify their row and position.
#include <ATen/Functions.h>

#include <numeric>
#include <vector>

#include "tessera/data/dataset.h"

namespace tessera {

using List = std::vector<int64_t>;

inline List values(const at::Tensor& tensor) {
  const at::Tensor flat = tensor.to(at::kLong).contiguous();
  return {flat.const_data_ptr<int64_t>(), flat.const_data_ptr<int64_t>() + flat.numel()};
}

// Row i is 100 i + first, 100 i + first + 1, ...; the labels are the ids.
inline Dataset numbered_rows(const List& lengths, Task task, size_t first) {
  Dataset dataset;
  dataset.task = task;
  for (size_t i = 0; i < lengths.size(); ++i) {
    std::vector<int32_t> ids(static_cast<size_t>(lengths[i]));
    std::iota(ids.begin(), ids.end(), static_cast<int32_t>(100 * i + first));
    dataset.examples.push_back({ids, ids, {}});
  }
  return dataset;
}

}  // namespace tessera
