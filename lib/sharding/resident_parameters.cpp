// SPDX-License-Identifier: MIT
#include <algorithm>

#include "lib/comm/operation_scope.h"
#include "lib/sharding/decoded_parameters.h"
#include "lib/sharding/messages.h"
#include "tessera/sharding/parameter_store.h"

namespace tessera {

ResidentParameters::ResidentParameters(const std::vector<ParameterUnit>& units, Communicator& comm,
                                       StoreOptions options)
    : units_(units), comm_(comm), options_(options) {}

ResidentParameters::~ResidentParameters() = default;

void ResidentParameters::adopt(size_t unit, const at::Tensor& full_fp32) {
  flats_.resize(unit + 1);
  flats_[unit] = stored_values(units_[unit], full_fp32, options_.dtype);
}

// Nothing moves from here on: views are made once.
void ResidentParameters::finalize() {
  messages_ = std::make_unique<const Messages>(units_);
  published_.resize(messages_->units.size());
  decoded_ = std::make_unique<DecodedParameters>(units_, options_.dtype, comm_.device());
  for (size_t unit = 0; unit < units_.size(); ++unit) {
    const FlatLayout& layout = units_[unit].layout;
    if (!units_[unit].coded()) bind_parameters(units_[unit], flats_[unit], 0, layout.numel());
    std::vector<Gather>& parts = parts_.emplace_back();
    for (size_t segment = 0; segment < layout.segments().size(); ++segment) {
      const at::Tensor whole = slice_of(flats_[unit], layout.segments()[segment]);
      parts.push_back({as_sent(whole), as_sent(owned(unit, segment))});
    }
  }
}

at::Tensor ResidentParameters::owned(size_t unit, size_t segment) const {
  return slice_of(flats_[unit],
                  units_[unit].layout.owned(segment, units_[unit].ranks(comm_).rank()));
}

void ResidentParameters::acquire(size_t unit, bool decodes) {
  const size_t message = messages_->of_unit[unit];
  // Not all units were published: an offloaded update publishes block by block.
  if (!published_[message].units.empty()) gather(message);
  published_[message].gather.wait();
  if (!units_[unit].coded()) return;
  decoded_->acquire(unit, flats_[unit], flats_[unit].narrow(0, 0, 0), decodes);
}

at::Tensor ResidentParameters::codes(size_t unit, size_t entry) const {
  return view_of(flats_[unit], units_[unit].layout.entries()[entry]);
}

void ResidentParameters::release(size_t unit) {
  if (units_[unit].coded()) decoded_->release(unit);
}

void ResidentParameters::drop_uses() { decoded_->drop(); }

// Decoding follows no order that a graph could repeat.
bool ResidentParameters::records() const { return !decoded_->any(); }

void ResidentParameters::publish(size_t unit) {
  if (units_[unit].coded()) decoded_->drop();
  if (units_[unit].layout.shards() == 1) return;  // every rank updated everything
  const size_t message = messages_->of_unit[unit];
  Published& published = published_[message];
  if (std::ranges::find(published.units, unit) == published.units.end()) {
    published.units.push_back(unit);
    if (!units_[unit].frozen) ++published.trained;
  }
  if (published.trained >= messages_->trained[message]) gather(message);
}

void ResidentParameters::gather(size_t message) {
  Published& published = published_[message];
  const ForTensor of(units_[published.units.front()].name);
  Communicator& ranks = units_[published.units.front()].ranks(comm_);  // a message has one
  Group group(ranks);
  for (const size_t unit : published.units) {
    for (const auto& [whole, own] : parts_[unit]) ranks.all_gather(whole, own);
  }
  Work before = std::move(published.gather);
  published.gather = group.end();
  before.wait();
  published.units.clear();
  published.trained = 0;
  if (!options_.overlap) published.gather.wait();
}

int64_t ResidentParameters::persistent_bytes() const {
  int64_t sum = 0;
  for (const auto& flat : flats_) sum += static_cast<int64_t>(flat.nbytes());
  return sum + (decoded_ == nullptr ? 0 : decoded_->scale_bytes());
}

int64_t ResidentParameters::buffer_bytes() const {
  return decoded_ == nullptr ? 0 : decoded_->buffer_bytes();
}

}  // namespace tessera
