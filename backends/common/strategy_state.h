// SPDX-License-Identifier: MIT
#pragma once
// State of a strategy as pieces of the model's tensors: views of its own memory.
#include <ATen/core/Tensor.h>

#include <cstddef>
#include <vector>

#include "backends/common/attached_model.h"
#include "backends/common/process_groups.h"
#include "tessera/backends/unit_optimizer.h"
#include "tessera/checkpoint/state.h"
#include "tessera/sharding/parameter_store.h"

namespace tessera {

// Parameters, optimizer state and buffers of one ShardingStrategy: see Strategy::state().
class StrategyState {
 public:
  // Inputs; all outlive the object.
  struct Parts {
    const AttachedModel& model;
    const ProcessGroups& ranks;
    ParameterStore& parameters;
    UnitOptimizer& optimizer;
    at::Tensor steps_begun;  // int64 host scalar
    bool splits_masters;     // see UnitOptimizerContext
  };
  explicit StrategyState(const Parts& parts) : parts_(parts) {}

  std::vector<StateTensor> pieces() const;
  // Publishes parameters after writing into pieces(). Collective.
  void restored() const;
  // Whether the unit's masters must fit SplitMaster: see settle(). Matrix optimizers never split
  // masters, so only a step may change them.
  bool settles(size_t unit) const;

 private:
  const Parts parts_;
};

}  // namespace tessera
