#pragma once
// What a rank holds while it trains, beside what was planned.
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "examples/common/prepare.h"
#include "tessera/backends/strategy.h"
#include "tessera/comm/control_channel.h"
#include "tessera/comm/device_mesh.h"
#include "tessera/core/device.h"
#include "tessera/metrics/event.h"
#include "tessera/plan/memory_plan.h"

namespace tessera::programs {

// Bytes of one category. A negative number is not known.
struct MemoryLine {
  std::string name;  // "parameter"; the field of metrics.jsonl is plan_parameter_bytes
  double plan = 0, measured = 0;
};

// One a rank, on its thread.
class RunMemory {
 public:
  // planned: whether plan_or_warn() could plan the run before it began.
  RunMemory(const Prepared& run, const DeviceMesh& mesh, bool planned);

  // Around what is measured: steps, without evaluations.
  void begin();
  void end();
  // Before a step that takes these.
  void next_step(std::span<const MicroBatch> micro_batches);

  // Of the rank that held most, on rank 0; elsewhere nothing. Collective.
  std::vector<MemoryLine> lines(const StrategyMemory& memory, ControlChannel& control);
  int rank() const { return rank_; }  // whose lines they are

 private:
  void note_peak();
  std::vector<MemoryLine> own_lines(const StrategyMemory& memory) const;
  std::optional<MemoryPlan> plan() const;  // of this rank, for the largest micro-batch

  const Prepared& run_;
  const DeviceMesh& mesh_;
  const at::Device device_;
  const bool planned_;
  std::optional<HostMemoryCounter> counter_;  // on the CPU
  double peak_ = -1, used_ = -1;  // of a GPU: of tensors, and what its driver says; -1: unknown
  int64_t begin_bytes_ = 0, most_bytes_ = 0;  // of the step under way; of all
  BatchShape largest_;
  int64_t largest_tokens_ = 0;
  int rank_ = 0;
};

// A table of MiB; "" without a plan.
std::string memory_text(const std::vector<MemoryLine>& lines, int rank);
metrics::Fields memory_fields(const std::vector<MemoryLine>& lines, int rank);

}  // namespace tessera::programs
