// SPDX-License-Identifier: MIT
#pragma once
// Reduction of replicated parameters' gradients once a step, and the gradient norm, which counts
// every element once.
#include <ATen/core/Tensor.h>

#include <vector>

#include "backends/common/attached_model.h"
#include "backends/common/process_groups.h"
#include "tessera/backends/unit_optimizer.h"
#include "tessera/sharding/gradient_reducer.h"
#include "tessera/sharding/gradient_store.h"

namespace tessera {

// Reduces gradients over replicas outside the data axis; owned by one ShardingStrategy. Per step:
// reduced() for every trained unit with a listener, then finish().
class ReplicatedGradientReducer {
 public:
  // Inputs; all outlive the object.
  struct Parts {
    const AttachedModel& model;
    const ProcessGroups& ranks;
    GradientReducer& wire;
    const GradientStore& gradients;
    UnitOptimizer& optimizer;
    bool sharded;           // more than one shard
    bool overlap;           // see ParallelConfig
    at::ScalarType reduce;  // reduce dtype
  };
  explicit ReplicatedGradientReducer(const Parts& parts);

  // Reports that the store has reduced the unit's gradient of this step over the shards; other
  // ranks may hold further parts.
  void reduced(size_t unit);
  // Completes all reductions (current stream) and tells the optimizer.
  void finish();
  void drop_step();  // waits for pending reductions
  // Keeps the sums on one replica only, as further gradients will be added and reduced again.
  void keep_once();
  // Squared norm of this step's whole gradient, over every axis: fp32 [1].
  at::Tensor norm_squared() const;
  int64_t bytes() const;

 private:
  // Gradients that replicas reduce once a step; small ones are coalesced.
  struct LateSum {
    Communicator* ranks = nullptr;
    std::vector<at::Tensor> alone, together;
    at::Tensor staging;
  };
  void add_unit(size_t unit, bool counts);
  LateSum& late_sum(Communicator* ranks);
  void order_sums();
  std::vector<at::Tensor> owned_gradients(size_t unit) const;

  const Parts parts_;
  std::vector<LateSum> late_sums_;      // in the same order on all ranks
  std::vector<bool> sums_late_;         // by unit: whether a part is in late_sums_
  std::vector<at::Tensor> norm_terms_;  // owned gradients counted by this rank
  bool norm_is_shared_ = false;         // whether other ranks count other gradients
  std::vector<Reduction> reductions_;   // pending, like works_
  std::vector<Work> works_;
};

}  // namespace tessera
