// SPDX-License-Identifier: MIT
#pragma once
// One rank's strategy on a mesh that is not there, attached to a model without memory.
#include <functional>
#include <memory>
#include <vector>

#include "lib/core/meta.h"
#include "lib/model/tensor_pack.h"
#include "lib/plan/block_outputs.h"
#include "lib/plan/step_memory.h"
#include "tessera/comm/fake_mesh.h"
#include "tessera/plan/dry_step.h"

namespace tessera {

// Everything of it happens on one thread. While it lives, meta tensors of that thread stand for
// those of the modelled device and are counted.
class DryRun {
 public:
  // Made and attached. wrap: see FakeMesh.
  explicit DryRun(const DryStep& step, const FakeMesh::Wrap& wrap = {});
  ~DryRun();
  DryRun(const DryRun&) = delete;
  DryRun& operator=(const DryRun&) = delete;

  // The same thing twice, of which the second time counts: the first leaves what lasts.
  template <typename Work>
  void repeat(const Work& work, int times = 2) {
    for (int time = 0; time < times; ++time) {
      mesh_.ledger().clear();
      memory_.begin_step();
      work(*strategy_);
    }
  }

  Strategy& strategy() { return *strategy_; }
  const StepMemory& memory() const { return memory_; }
  const CommunicationLedger& communication() const { return mesh_.ledger(); }
  int64_t attach_peak_bytes() const { return attach_peak_bytes_; }

 private:
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

// Runs work(). Throws Error(kInvalidArgument) where an operator does not run on meta.
void without_values(const std::string& model, const std::function<void()>& work);

}  // namespace tessera
