// What becomes of a step, an evaluation or a prediction that an exception has ended.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "tessera/backends/sharding_strategy.h"
#include "tessera/comm/device_mesh.h"
#include "tessera/core/device.h"
#include "tessera/core/error.h"

namespace tessera {

// [Note: a call left by an exception]
// It leaves collectives on their way and buffers half filled. Where all ranks have left it after
// the same collectives, each waits for them and drops what was done: the next call begins as if
// this one had not been made. What was sent over each axis since the call began tells where a rank
// has left it. Ranks compare that at the next call over the whole mesh, on whose communicator
// nothing else is under way within a step. A rank that failed alone waits there for peers that wait
// for it on an axis, until the timeout ends both.
//
// An update that was left may have changed some parameters, and a stage that has left a pipeline
// may owe messages: there is no way back from either.

void ShardingStrategy::enter() {
  check(parameters_ != nullptr, ErrorCode::kInternal, name(), ": attach() was not called");
  if (order_.under_way() == StepOrder::Call::kUpdate) {
    order_.make_unusable(
        "an exception has left optimizer_step(), so some parameters may be updated and others not");
  }
  order_.require_usable(name());
  if (order_.under_way() != StepOrder::Call::kNone) rejoin();
}

void ShardingStrategy::begin_call(StepOrder::Call call) {
  order_.begin(call);
  sent_at_begin_ = bytes_sent_by_axis();
}

void ShardingStrategy::give_up(const std::string& why) {
  order_.make_unusable(why);
  world_->abort(concat("rank ", world_->rank(), ": ", why));
}

std::array<int64_t, 4> ShardingStrategy::bytes_sent_by_axis() const {
  const Communicator* tensor = mesh_ == nullptr ? nullptr : &mesh_->axis(Axis::kTensor);
  const auto sent = [](const Communicator* axis) {
    return axis == nullptr ? int64_t{0} : axis->bytes_sent();
  };
  return {sent(&data_), sent(shards_), sent(replicas_), sent(tensor)};
}

void ShardingStrategy::rejoin() {
  const at::NoGradGuard no_grad;
  uint64_t place = static_cast<uint64_t>(order_.under_way());
  const std::array<int64_t, 4> sent = bytes_sent_by_axis();
  for (size_t i = 0; i < sent.size(); ++i) {
    place = block_seed(place, static_cast<size_t>(sent[i] - sent_at_begin_[i]));
  }
  Communicator& everyone = mesh_ == nullptr ? *world_ : mesh_->world();
  // As in exchange_counts(): it must cancel.
  const auto number = static_cast<int64_t>(place >> 16);
  std::vector<int64_t> numbers(5 + data_ends({}).size(), 0);
  numbers[3] = (everyone.rank() == 0 ? everyone.size() - 1 : -1) * number;
  at::Tensor sum = at::tensor(numbers, at::kLong).to(everyone.device());
  try {
    everyone.all_reduce(sum).wait();
    check(sum[3].item<int64_t>() == 0, ErrorCode::kUnavailable, "ranks differ in what they sent");
  } catch (const Error& error) {
    order_.make_unusable(
        concat("an exception has left a step, and not on all ranks at the same place (",
               error.what(), ")"));
  }
  order_.require_usable(name());
  drop_call();
}

void ShardingStrategy::drop_call() {
  counts_work_.wait();
  agreement_.reset();
  gradients_->drop_step();
  for (Reduction& reduction : reductions_) reduction.wait();
  reductions_.clear();
  for (Work& work : works_) work.wait();
  works_.clear();
  wire_->settle_all();
  parameters_->drop_uses();
  synchronize_device(data_.device());
  if (!room_made_) tokens_before_ = 0;
  micro_batches_.clear();
  loss_gradient_.reset();
  sums_.reset();
  order_.drop();
}

}  // namespace tessera
