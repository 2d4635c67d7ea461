// SPDX-License-Identifier: MIT
#pragma once
// One rank's strategy on a fake mesh, attached to a model on the meta device.
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "lib/core/meta.h"
#include "lib/model/tensor_pack.h"
#include "lib/plan/block_outputs.h"
#include "lib/plan/equal_passes.h"
#include "lib/plan/step_memory.h"
#include "tessera/comm/fake_mesh.h"
#include "tessera/plan/dry_step.h"

namespace tessera {

// Used by one thread. While it lives, that thread's meta tensors stand for the modelled device's
// and are counted.
class DryRun {
 public:
  // Makes and attaches the strategy. wrap: see FakeMesh. passes: recorded passes of equal blocks;
  // null: every block runs.
  explicit DryRun(const DryStep& step, const FakeMesh::Wrap& wrap = {},
                  EqualPasses* passes = nullptr);
  ~DryRun();
  DryRun(const DryRun&) = delete;
  DryRun& operator=(const DryRun&) = delete;

  // Runs both. Only `work` counts; `first` makes the persistent state.
  void run(const std::function<void(Strategy&)>& first, const std::function<void(Strategy&)>& work);
  // Runs `work` once and counts it, persistent state included, but not attach().
  void once(const std::function<void(Strategy&)>& work);
  // Runs `work` twice; the second run counts.
  void repeat(const std::function<void(Strategy&)>& work) { run(work, work); }
  // Runs work(). Throws NotDry for an operator without a meta kernel.
  void guarded(const std::function<void()>& work) const;

  Strategy& strategy() const { return *strategy_; }
  const StepMemory& memory() const { return memory_; }
  const CommunicationLedger& communication() const { return mesh_.ledger(); }
  int64_t attach_peak_bytes() const { return attach_peak_bytes_; }

 private:
  const std::string model_;
  const MetaStandsFor stands_;
  const PackedWithoutMemory packed_;
  const FakeMesh mesh_;
  BlockOutputs outputs_;
  StepMemory memory_;
  std::unique_ptr<Strategy> strategy_;
  int64_t attach_peak_bytes_ = 0;
};

// Copies on the meta device, with positive target counts.
std::vector<MicroBatch> without_memory(const std::vector<MicroBatch>& micro_batches);

}  // namespace tessera
