// SPDX-License-Identifier: MIT
#pragma once
// One rank's strategy on a mesh that is not there, attached to a model without memory.
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

// Everything of it happens on one thread. While it lives, meta tensors of that thread stand for
// those of the modelled device and are counted.
class DryRun {
 public:
  // Made and attached. wrap: see FakeMesh.
  // passes: what equal blocks take; null: every block runs.
  explicit DryRun(const DryStep& step, const FakeMesh::Wrap& wrap = {},
                  EqualPasses* passes = nullptr);
  ~DryRun();
  DryRun(const DryRun&) = delete;
  DryRun& operator=(const DryRun&) = delete;

  // Both things, of which the second counts: the first leaves what lasts.
  void run(const std::function<void(Strategy&)>& first, const std::function<void(Strategy&)>& work);
  // What is called and taken the first time, while it is attached left out.
  void once(const std::function<void(Strategy&)>& work);
  // The same thing twice.
  void repeat(const std::function<void(Strategy&)>& work) { run(work, work); }
  // Runs work(). Throws NotDry where an operator does not run on meta.
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

// Copies on meta, with counts that no step refuses.
std::vector<MicroBatch> without_memory(const std::vector<MicroBatch>& micro_batches);

}  // namespace tessera
