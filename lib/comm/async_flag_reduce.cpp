// SPDX-License-Identifier: MIT
#include "tessera/comm/async_flag_reduce.h"

#include <ATen/ATen.h>

#include "lib/comm/operation_scope.h"

namespace tessera {
namespace {

Work start(Communicator& world, const at::Tensor& votes, AsyncFlagReduce::Of of) {
  const ForTensor name("vote");
  return world.all_reduce(votes, of == AsyncFlagReduce::Of::kAny ? ReduceOp::kMax : ReduceOp::kMin);
}

}  // namespace

AsyncFlagReduce::AsyncFlagReduce(Communicator& world, Of of, bool mine)
    : votes_(at::full({1}, mine ? 1 : 0, at::dtype(at::kInt).device(world.device()))),
      work_(start(world, votes_, of)) {
  if (votes_.is_cpu()) return;
  Work(work_).wait();
  copied_.emplace(std::vector<at::Tensor>{votes_});
}

bool AsyncFlagReduce::answer() {
  if (!copied_) work_.wait();
  const double vote = copied_ ? copied_->read().front() : votes_.item<double>();
  work_.wait();  // throws when communication has failed, which voids the vote
  return vote == 1;
}

}  // namespace tessera
