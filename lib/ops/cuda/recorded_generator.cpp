// SPDX-License-Identifier: MIT
#include "lib/ops/cuda/recorded_generator.h"

#include <ATen/ATen.h>
#include <ATen/cuda/CUDAGeneratorImpl.h>

#include <mutex>

namespace tessera::ops::cuda {

RecordedGenerator::RecordedGenerator(const at::Tensor& seed)
    : generator_(at::cuda::detail::getDefaultCUDAGenerator(seed.device().index())) {
  const auto state = c10::make_intrusive<at::CUDAGeneratorState>();
  state->capturing_ = true;
  state->seed_extragraph_ = seed.select(0, 0);
  state->offset_extragraph_ = seed.select(0, 1);
  const auto recorded = at::make_generator<at::CUDAGeneratorImpl>(seed.device().index(), state);
  const std::scoped_lock lock(generator_.mutex());
  before_ = generator_.graphsafe_get_state();
  generator_.graphsafe_set_state(recorded);
}

RecordedGenerator::~RecordedGenerator() {
  const std::scoped_lock lock(generator_.mutex());
  generator_.graphsafe_set_state(before_);
}

}  // namespace tessera::ops::cuda
