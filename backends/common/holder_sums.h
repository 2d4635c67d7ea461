// SPDX-License-Identifier: MIT
#pragma once
// What follows from the placement of parameters once a step: sums over ranks that hold one value,
// and the norm, in which every element counts once.
#include <ATen/core/Tensor.h>

#include <vector>

#include "backends/common/attached_model.h"
#include "backends/common/strategy_ranks.h"
#include "tessera/backends/unit_optimizer.h"
#include "tessera/sharding/gradient_store.h"
#include "tessera/sharding/gradient_wire.h"

namespace tessera {

// Owned by one ShardingStrategy. Per step reduced() for every trained unit, where anybody has to
// know, then finish().
class HolderSums {
 public:
  // All of it outlives this.
  struct Parts {
    const AttachedModel& model;
    const StrategyRanks& ranks;
    GradientWire& wire;
    const GradientStore& gradients;
    UnitOptimizer& optimizer;
    bool sharded;           // several shards
    bool overlap;           // see ParallelConfig
    at::ScalarType reduce;  // dtype of sums
  };
  explicit HolderSums(const Parts& parts);

  // The store has summed the unit's gradient of this step over the shards' ranks; other ranks may
  // hold parts of the sum.
  void reduced(size_t unit);
  // On return (current stream) all sums are in their places, and the optimizer knows.
  void finish();
  void drop_step();  // waits for the sums under way
  // Sums will be made anew of what is there and what is added: it stays with one rank of those.
  void keep_once();
  // Of this step's whole gradient, over every axis: fp32 [1].
  at::Tensor norm_squared() const;
  int64_t bytes() const;

 private:
  // Gradients that the holders of a value sum once a step. Small ones travel together.
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
  std::vector<bool> sums_late_;         // by unit: some of it is in late_sums_
  std::vector<at::Tensor> norm_terms_;  // owned gradients that this rank counts
  bool norm_is_shared_ = false;         // other ranks count other gradients
  std::vector<Reduction> reductions_;   // under way, and so are works_
  std::vector<Work> works_;
};

}  // namespace tessera
