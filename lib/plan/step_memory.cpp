// SPDX-License-Identifier: MIT
#include "lib/plan/step_memory.h"

#include <algorithm>

#include "lib/comm/operation_scope.h"

namespace tessera {

size_t StepMemory::tag_now() {
  const OperationContext& now = operation_context();
  if (phase_ == now.phase && label_ == now.label.data()) return tag_;
  phase_ = now.phase;
  label_ = now.label.data();
  for (Side* side : {&device_, &host_}) end_visit(*side);
  ++visit_;
  const auto [found, added] =
      tags_.try_emplace({now.phase, std::string(now.label)}, purposes_.size());
  if (added) {
    purposes_.push_back(found->first);
    for (Side* side : {&device_, &host_}) {
      side->by_tag.push_back(0);
      side->left.push_back(0);
    }
  }
  return tag_ = found->second;
}

// Memory that a visit leaves is not part of its temporary memory.
void StepMemory::end_visit(Side& side) {
  if (tag_ < side.left.size()) side.left[tag_] = std::max(side.left[tag_], side.of_visit);
  if (side.peak_visit == visit_) side.peak_of_visit -= std::min(side.peak_of_visit, side.of_visit);
  side.of_visit = 0;
}

void StepMemory::allocated(MetaAllocation& allocation) {
  allocation.bytes = rounded(allocation.bytes);
  allocation.tag = tag_now();
  allocation.visit = visit_;
  Side& side = allocation.on_host ? host_ : device_;
  side.live += allocation.bytes;
  side.by_tag[allocation.tag] += allocation.bytes;
  side.of_visit += allocation.bytes;
  most_of_pass_ = std::max(most_of_pass_, device_.live);
  if (side.live <= side.peak) return;
  side.peak = side.live;
  side.peak_by_tag = side.by_tag;
  side.peak_of_visit = side.of_visit;
  side.peak_visit = visit_;
  side.peak_tag = allocation.tag;
}

void StepMemory::released(const MetaAllocation& allocation) {
  Side& side = allocation.on_host ? host_ : device_;
  side.live -= allocation.bytes;
  side.by_tag[allocation.tag] -= allocation.bytes;
  if (allocation.visit == visit_) side.of_visit -= allocation.bytes;
}

void StepMemory::begin_step() {
  for (Side* side : {&device_, &host_}) {
    side->lasting = side->peak = side->live;
    side->lasting_by_tag = side->peak_by_tag = side->by_tag;
    side->peak_of_visit = 0;
    side->peak_visit = -1;
  }
}

bool StepMemory::saw(std::string_view phase) const {
  return std::ranges::any_of(purposes_, [&](const Purpose& each) { return each.first == phase; });
}

std::string StepMemory::last_purpose() const {
  return purposes_.empty() ? "" : purposes_[tag_].second + " in " + purposes_[tag_].first;
}

int64_t StepMemory::left_by(const std::string& phase, const std::string& name) const {
  const auto found = tags_.find({phase, name});
  return found == tags_.end() ? 0 : device_.left[found->second];
}

LedgerPeak StepMemory::peak(bool on_host) const {
  const Side& side = on_host ? host_ : device_;
  LedgerPeak peak{.bytes = side.peak, .lasting = side.lasting, .running = side.peak_of_visit};
  if (side.peak_visit >= 0) std::tie(peak.phase, peak.name) = purposes_[side.peak_tag];
  for (size_t tag = 0; tag < side.peak_by_tag.size(); ++tag) {
    const int64_t before = tag < side.lasting_by_tag.size() ? side.lasting_by_tag[tag] : 0;
    if (side.peak_by_tag[tag] == before) continue;
    peak.parts.push_back(
        {purposes_[tag].first, purposes_[tag].second, side.peak_by_tag[tag] - before});
  }
  return peak;
}

}  // namespace tessera
