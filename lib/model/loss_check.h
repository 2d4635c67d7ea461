// SPDX-License-Identifier: MIT
#pragma once
// What can be told of a user's loss: whether it is what was declared.
#include <functional>
#include <string>

#include "tessera/model/adapters.h"

namespace tessera {

class LossCheck {
 public:
  LossCheck(std::string block, const ModuleOptions& options)
      : block_(std::move(block)), reduction_(options.reduction), counters_(options.counters) {}
  // The loss of other rows than those given.
  using LossOf = std::function<at::Tensor(const MicroBatch& rows)>;
  // Throws Error(kInvalidArgument) for a result of the loss that is not what was declared. Results
  // with gradients are looked at until it can be told. A sum that LibTorch's graph shows to be
  // divided by something is computed once more, from every row twice and without gradients; null:
  // it cannot be.
  void check(const at::Tensor& result, const MicroBatch& micro_batch, const LossOf& loss_of_twice);
  // The same of a loss with a divisor of its own. again: it is computed for the rows as they are,
  // too.
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
