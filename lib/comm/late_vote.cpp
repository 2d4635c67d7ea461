#include "tessera/comm/late_vote.h"

#include <ATen/ATen.h>

namespace tessera {

LateVote::LateVote(Communicator& world, Of of, bool mine)
    : votes_(at::full({1}, mine ? 1 : 0, at::dtype(at::kInt).device(world.device()))),
      work_(world.all_reduce(votes_, of == Of::kAny ? ReduceOp::kMax : ReduceOp::kMin)) {
  if (votes_.is_cpu()) return;
  work_.wait();
  copied_.emplace(std::vector<at::Tensor>{votes_});
}

bool LateVote::answer() {
  work_.wait();
  return (copied_ ? copied_->read().front() : votes_.item<double>()) == 1;
}

}  // namespace tessera
