// SPDX-License-Identifier: MIT
#pragma once
// Meta memory by the phase and purpose of its allocation.
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lib/core/meta.h"
#include "tessera/plan/dry_step.h"

namespace tessera {

// [Note: parts of a peak]
// Every allocation has a purpose: the thread's phase and tensor name (InPhase, ForTensor). A visit
// is the time until the purpose changes, mostly one pass of one block. Temporary memory of a block
// is allocated in the peak's visit, alive at the peak and freed by the visit's end.
class StepMemory final : public MetaMemory {
 public:
  // rounding: bytes of a tensor are rounded up to a multiple.
  explicit StepMemory(int64_t rounding) : rounding_(rounding) {}

  void allocated(MetaAllocation& allocation) override;
  void released(const MetaAllocation& allocation) override;

  int64_t live_bytes() const { return device_.live; }
  // Bytes of the tensor's storage, rounded.
  int64_t bytes_of(const at::Tensor& tensor) const {
    return rounded(static_cast<int64_t>(tensor.storage().nbytes()));
  }
  // Peak device bytes since the last begin_pass().
  void begin_pass() { most_of_pass_ = device_.live; }
  int64_t most_of_pass() const { return most_of_pass_; }
  // Starts the search for a new peak; memory alive now is persistent.
  void begin_step();
  LedgerPeak peak(bool on_host = false) const;
  // True if anything was allocated in this phase.
  bool saw(std::string_view phase) const;
  // Phase and purpose of the last allocation, for a message.
  std::string last_purpose() const;
  // The most bytes that a visit of this phase and purpose left allocated.
  int64_t left_by(const std::string& phase, const std::string& name) const;

 private:
  using Purpose = std::pair<std::string, std::string>;
  struct Side {
    int64_t live = 0, lasting = 0;
    std::vector<int64_t> by_tag, lasting_by_tag;
    int64_t of_visit = 0;       // allocated in this visit and still alive
    std::vector<int64_t> left;  // by tag: the most that a visit left
    // At the peak:
    int64_t peak = 0;
    std::vector<int64_t> peak_by_tag;
    int64_t peak_of_visit = 0, peak_visit = -1;
    size_t peak_tag = 0;
  };
  int64_t rounded(int64_t bytes) const { return (bytes + rounding_ - 1) / rounding_ * rounding_; }
  size_t tag_now();
  void end_visit(Side& side);

  int64_t rounding_;
  std::map<Purpose, size_t> tags_;
  std::vector<Purpose> purposes_;
  const char* phase_ = nullptr;  // of the last allocation
  const void* label_ = nullptr;
  size_t tag_ = 0;
  int64_t visit_ = 0, most_of_pass_ = 0;
  Side device_, host_;
};

}  // namespace tessera
