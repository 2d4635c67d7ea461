// SPDX-License-Identifier: MIT
#include "tessera/checkpoint/state.h"

namespace tessera {

at::ScalarType StateTensor::dtype() const {
  return split.defined() ? at::kFloat : value.scalar_type();
}

at::Device StateTensor::device() const {
  return split.defined() ? split.remainder.device() : value.device();
}

int64_t StateTensor::nbytes() const {
  return slice.numel() * static_cast<int64_t>(c10::elementSize(dtype()));
}

StateTensor StateTensor::narrow(int64_t first, int64_t count) const {
  StateTensor part = *this;
  part.slice.begin = slice.begin + first;
  part.slice.end = part.slice.begin + count;
  const MasterValues values = MasterValues{value, split}.narrow(first, count);
  part.value = values.whole;
  part.split = values.split;
  return part;
}

}  // namespace tessera
