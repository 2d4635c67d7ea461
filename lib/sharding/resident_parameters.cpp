// SPDX-License-Identifier: MIT
#include "lib/comm/operation_scope.h"
#include "tessera/sharding/parameter_store.h"

namespace tessera {

ResidentParameters::ResidentParameters(const std::vector<ParameterUnit>& units, Communicator& comm,
                                       StoreOptions options)
    : units_(units), comm_(comm), options_(options) {}

void ResidentParameters::adopt(size_t unit, const at::Tensor& full_fp32) {
  flats_.resize(unit + 1);
  flats_[unit] = full_fp32.to(options_.dtype);
}

void ResidentParameters::finalize() {
  gathers_.resize(units_.size());
  for (size_t unit = 0; unit < units_.size(); ++unit) {
    bind_parameters(units_[unit], flats_[unit], 0, units_[unit].layout.numel());
  }
}

at::Tensor ResidentParameters::owned(size_t unit, size_t segment) const {
  return slice_of(flats_[unit], units_[unit].layout.owned(segment, comm_.rank()));
}

void ResidentParameters::publish(size_t unit) {
  const FlatLayout& layout = units_[unit].layout;
  if (layout.shards() == 1) return;  // every rank updated everything
  const ForTensor of(units_[unit].name);
  Group group(comm_);
  for (size_t segment = 0; segment < layout.segments().size(); ++segment) {
    comm_.all_gather(slice_of(flats_[unit], layout.segments()[segment]), owned(unit, segment));
  }
  gathers_[unit] = group.end();
  if (!options_.overlap) gathers_[unit].wait();
}

int64_t ResidentParameters::persistent_bytes() const {
  int64_t sum = 0;
  for (const auto& flat : flats_) sum += static_cast<int64_t>(flat.nbytes());
  return sum;
}

}  // namespace tessera
