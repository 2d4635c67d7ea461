#include "examples/common/rank_times.h"

#include <ATen/ATen.h>

namespace tessera::programs {

void RankTimes::tell(double work_s) {
  mine_ = at::full({1}, work_s, at::kDouble);
  all_ = at::empty({world_.size()}, at::kDouble);
  work_ = world_.all_gather(all_, mine_);
}

std::vector<double> RankTimes::read() {
  if (!all_.defined()) return {};
  work_.wait();
  const double* begin = all_.const_data_ptr<double>();
  std::vector<double> times(begin, begin + all_.numel());
  all_.reset();
  return times;
}

}  // namespace tessera::programs
