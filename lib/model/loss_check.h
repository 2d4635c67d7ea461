#pragma once
// What can be told of a user's loss: whether it is a SUM over the targets.
#include <string>

#include "tessera/model/adapters.h"

namespace tessera {

class LossCheck {
 public:
  LossCheck(std::string block, LossFunction loss, int counters)
      : block_(std::move(block)), loss_(std::move(loss)), counters_(counters) {}
  // Throws Error(kInvalidArgument) for a result of the loss that is no sum. Results with gradients
  // are looked at until it can be told. One that LibTorch's graph shows to be divided by something
  // is computed once more, from every row twice and without gradients.
  void check(const at::Tensor& result, const at::Tensor& output, const MicroBatch& micro_batch);

 private:
  void check_shape(const at::Tensor& result) const;
  bool stays_when_rows_double(const at::Tensor& result, const at::Tensor& output,
                              const MicroBatch& micro_batch);

  std::string block_;
  LossFunction loss_;
  int counters_;
  bool told_ = false;
};

}  // namespace tessera
