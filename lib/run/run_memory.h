// SPDX-License-Identifier: MIT
#pragma once
// What a rank holds while it trains, beside what was planned.
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

// Bytes of one category. A negative number is not known.
struct MemoryLine {
  std::string name;  // "parameter"; the field of metrics.jsonl is plan_parameter_bytes
  double plan = 0, measured = 0;
};

// What a run does with micro-batches.
enum class Activity { kSteps, kEvaluation, kGeneration };

// One a rank, on its thread.
class RunMemory {
 public:
  // plan: of the run, which could be planned before it began; nothing: it could not.
  RunMemory(const DeviceMesh& mesh, std::optional<LayoutPlan> plan);

  // Around what is measured.
  void begin(Activity work);
  void end();
  // Before a step or an evaluation that takes these.
  void next(std::span<const MicroBatch> micro_batches);
  void next(const BatchShape& shape);

  // Of a GPU, since this object was made: begin() resets its peaks.
  DeviceMemory device_peak() const;

  // Of the rank that held most, on rank 0; elsewhere nothing. step: where an offloaded update runs.
  // Collective.
  std::vector<MemoryLine> lines(const StrategyMemory& memory, OffloadStep step,
                                ControlChannel& control);
  int rank() const { return rank_; }  // whose lines they are

 private:
  // Of one kind of work.
  struct Watched {
    double peak = -1;  // of tensors, on the CPU beyond those that stay; -1: unknown
    BatchShape largest;
    int64_t tokens = 0;  // of the largest; 0: there was none
  };
  Watched& now() { return watched_[static_cast<size_t>(work_)]; }
  const Watched& watched(Activity work) const { return watched_[static_cast<size_t>(work)]; }
  void note_peak();
  void add(const BatchShape& shape, int64_t tokens);
  std::vector<MemoryLine> own_lines(const StrategyMemory& memory, OffloadStep step) const;
  std::optional<MemoryPlan> plan(OffloadStep step) const;  // of this rank, for the largest

  const DeviceMesh& mesh_;
  const at::Device device_;
  const std::optional<LayoutPlan> plan_;
  std::optional<HostMemoryCounter> counter_;  // on the CPU
  Activity work_ = Activity::kSteps;
  std::array<Watched, 3> watched_;
  DeviceMemory ended_;       // peaks of what has ended
  double used_ = -1;         // of a GPU, as its driver says; -1: unknown
  int64_t begin_bytes_ = 0;  // on the CPU, of the step under way
  int rank_ = 0;
};

// A table of MiB; "" without a plan.
std::string memory_text(const std::vector<MemoryLine>& lines, int rank);
metrics::Fields memory_fields(const std::vector<MemoryLine>& lines, int rank);

}  // namespace tessera::programs
