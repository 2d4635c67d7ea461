// SPDX-License-Identifier: MIT
#pragma once
// What meta tensors take, by the phase and the purpose for which they are allocated.
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
// Every allocation carries its purpose: what the thread's communicators would note with an
// operation (InPhase, ForTensor). A visit is the time until the purpose changes: mostly one pass of
// one block. What is live at the peak, was allocated in the visit that the peak is in, and is gone
// at its end, is what the block needs to run.
class StepMemory final : public MetaMemory {
 public:
  // Every tensor takes a multiple of `rounding` bytes.
  explicit StepMemory(int64_t rounding) : rounding_(rounding) {}

  void allocated(MetaAllocation& allocation) override;
  void released(const MetaAllocation& allocation) override;

  int64_t live_bytes() const { return device_.live; }
  // What the tensor's memory takes.
  int64_t bytes_of(const at::Tensor& tensor) const {
    return rounded(static_cast<int64_t>(tensor.storage().nbytes()));
  }
  // The most since the last begin_pass(), of the device.
  void begin_pass() { most_of_pass_ = device_.live; }
  int64_t most_of_pass() const { return most_of_pass_; }
  // A new peak is looked for from here on; what is live now lasts.
  void begin_step();
  LedgerPeak peak(bool on_host = false) const;
  // Whether anything was allocated in this phase.
  bool saw(std::string_view phase) const;
  // For a message: the phase and the purpose of what was allocated last.
  std::string last_purpose() const;
  // The most that a visit of this phase and purpose left allocated.
  int64_t left_by(const std::string& phase, const std::string& name) const;

 private:
  using Purpose = std::pair<std::string, std::string>;
  struct Side {
    int64_t live = 0, lasting = 0;
    std::vector<int64_t> by_tag, lasting_by_tag;
    int64_t of_visit = 0;       // live, allocated in this visit
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
