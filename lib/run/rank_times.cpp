// SPDX-License-Identifier: MIT
#include "lib/run/rank_times.h"

#include <ATen/ATen.h>

namespace tessera::programs {

RankTimes::RankTimes(Communicator& world) : world_(world), stream_(side_stream(world.device())) {
  const auto on_device = at::TensorOptions(at::kDouble).device(world.device());
  mine_ = at::empty({1}, on_device);
  all_ = at::empty({world.size()}, on_device);
  const auto on_host = at::TensorOptions(at::kDouble).pinned_memory(!world.device().is_cpu());
  told_ = at::empty({1}, on_host);
  read_ = at::empty({world.size()}, on_host);
  // The first collective connects the ranks and blocks the host: done here, not in a step.
  tell(0);
  read();
}

void RankTimes::tell(double work_s) {
  const StreamScope scope(stream_);
  *told_.mutable_data_ptr<double>() = work_s;
  mine_.copy_(told_, /*non_blocking=*/true);
  work_ = world_.all_gather(all_, mine_);
  under_way_ = true;
  if (world_.device().is_cpu()) return;
  work_.wait();
  read_.copy_(all_, /*non_blocking=*/true);
  here_.record(stream_);
}

std::vector<double> RankTimes::read() {
  if (!under_way_) return {};
  under_way_ = false;
  work_.wait();  // on a GPU: no wait, ordered on its stream
  here_.synchronize();
  const at::Tensor& values = world_.device().is_cpu() ? all_ : read_;
  const double* begin = values.const_data_ptr<double>();
  return {begin, begin + values.numel()};
}

}  // namespace tessera::programs
