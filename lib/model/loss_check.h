// SPDX-License-Identifier: MIT
#pragma once
// Checks that a user's loss has the declared reduction.
#include <functional>
#include <string>

#include "tessera/model/adapters.h"

namespace tessera {

class LossCheck {
 public:
  LossCheck(std::string block, const ModuleOptions& options)
      : block_(std::move(block)), reduction_(options.reduction), counters_(options.counters) {}
  // The loss of other rows.
  using LossOf = std::function<at::Tensor(const MicroBatch& rows)>;
  // Throws Error(kInvalidArgument) if the result contradicts the declaration. Examines results with
  // gradients until the check is conclusive. If the autograd graph of a sum has a division,
  // computes the loss again with duplicated rows, without gradients; null: not possible.
  void check(const at::Tensor& result, const MicroBatch& micro_batch, const LossOf& loss_of_twice);
  // check() for a loss with its own divisor. again: also called with the original rows.
  void check(const LossResult& result, const MicroBatch& micro_batch, const LossOf& again);

 private:
  void check_shape(const at::Tensor& result) const;
  void check_known(const at::Tensor& loss, bool divided_by_own, const MicroBatch& micro_batch,
                   const LossOf& loss_of_twice, const LossOf& loss_of_once);
  bool stays_when_rows_double(double once, const MicroBatch& micro_batch,
                              const LossOf& loss_of_twice);

  std::string block_;
  LossReduction reduction_;
  int counters_;
  bool told_ = false;
};

}  // namespace tessera
