// SPDX-License-Identifier: MIT
#include "lib/core/recorded_seeds.h"

#include <ATen/ATen.h>

#include "tessera/core/error.h"

namespace tessera {

RecordedSeeds::RecordedSeeds(at::Device device)
    : values_(at::zeros({kMost, 2}, at::TensorOptions(at::kLong).device(device))) {}

at::Tensor RecordedSeeds::place_of(const Name& name, const Rule& rule) {
  const auto [found, is_new] = places_.try_emplace(name, static_cast<int64_t>(rules_.size()));
  if (is_new) {
    check(found->second < kMost, ErrorCode::kInternal, "recorded work draws from more than ", kMost,
          " seeds");
    rules_.push_back(rule);
  }
  return values_.select(0, found->second);
}

void RecordedSeeds::write(uint64_t seed) const {
  if (rules_.empty()) return;
  const auto count = static_cast<int64_t>(rules_.size());
  const at::Tensor host =
      at::zeros({count, 2}, at::TensorOptions(at::kLong).pinned_memory(!values_.device().is_cpu()));
  auto* values = host.mutable_data_ptr<int64_t>();
  for (const Rule& rule : rules_) {
    *values = static_cast<int64_t>(rule(seed));
    values += 2;
  }
  values_.narrow(0, 0, count).copy_(host, /*non_blocking=*/true);
}

}  // namespace tessera
