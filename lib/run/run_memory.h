// SPDX-License-Identifier: MIT
#pragma once
// Measured memory of a rank during training, compared with its plan.
#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lib/plan/memory_plan.h"
#include "lib/run/device_memory.h"
#include "tessera/backends/strategy.h"
#include "tessera/comm/control_channel.h"
#include "tessera/comm/device_mesh.h"
#include "tessera/core/device.h"
#include "tessera/metrics/event.h"

namespace tessera::programs {

// Bytes of one category; negative: unknown.
struct MemoryLine {
  std::string name;  // "parameter"; the field of metrics.jsonl is plan_parameter_bytes
  double plan = 0, measured = 0;
};

// Work on micro-batches.
enum class Activity { kSteps, kEvaluation, kGeneration };

// One per rank, used by its thread.
class RunMemory {
 public:
  // layout: empty unless it could be planned before the run.
  RunMemory(const DeviceMesh& mesh, std::optional<PlannedLayout> layout);

  // Enclose the measured work.
  void begin(Activity work);
  void end();
  // Call before each step or evaluation with its micro-batches.
  void next(std::span<const MicroBatch> micro_batches);
  void next(const BatchShape& shape);

  // Peak of a GPU since construction; begin() resets the device's own peaks.
  DeviceMemory device_peak() const;

  // Lines of the rank with most memory, on rank 0; empty elsewhere. step: where an offloaded update
  // runs. Collective.
  std::vector<MemoryLine> lines(const StrategyMemory& memory, OffloadStep step,
                                ControlChannel& control);
  int rank() const { return rank_; }  // the rank that lines() describes

 private:
  // Measurements of one activity.
  struct Watched {
    double peak = -1;  // bytes of tensors, on the CPU beyond the persistent ones; -1: unknown
    BatchShape largest;
    int64_t tokens = 0;  // tokens of the largest; 0: none yet
  };
  Watched& now() { return watched_[static_cast<size_t>(work_)]; }
  const Watched& watched(Activity work) const { return watched_[static_cast<size_t>(work)]; }
  void note_peak();
  void add(const BatchShape& shape, int64_t tokens);
  std::vector<MemoryLine> own_lines(const StrategyMemory& memory, OffloadStep step) const;
  // Plan of this rank for its largest micro-batch.
  std::optional<MemoryPlan> plan(OffloadStep step) const;

  const DeviceMesh& mesh_;
  const at::Device device_;
  const std::optional<PlannedLayout> layout_;
  std::optional<HostMemoryCounter> counter_;  // CPU only
  Activity work_ = Activity::kSteps;
  std::array<Watched, 3> watched_;
  DeviceMemory ended_;       // peaks of ended activities
  double used_ = -1;         // bytes in use of a GPU, from its driver; -1: unknown
  int64_t begin_bytes_ = 0;  // CPU only: bytes at the begin of the current step
  int rank_ = 0;
};

// A table in MiB; "" without a plan.
std::string memory_text(const std::vector<MemoryLine>& lines, int rank);
metrics::Fields memory_fields(const std::vector<MemoryLine>& lines, int rank);

}  // namespace tessera::programs
