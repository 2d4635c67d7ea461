#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>

#include <mutex>

#include "lib/ops/random.h"
#include "tessera/core/error.h"
#include "tessera/core/hash.h"
#include "tessera/core/meta.h"
#include "tessera/ops/functional.h"

namespace tessera::ops {

uint64_t mixed_seed(uint64_t seed, int64_t number) {
  return xxh3_64(&number, sizeof(number), seed);
}

SeededDevice::SeededDevice(at::Device device, uint64_t seed) {
  if (device.is_meta()) return;  // nothing is drawn
  generator_ = at::globalContext().defaultGenerator(device);
  const std::scoped_lock lock(generator_.mutex());
  state_ = generator_.get_state();
  generator_.set_current_seed(seed);
}

SeededDevice::~SeededDevice() {
  if (!generator_.defined()) return;
  const std::scoped_lock lock(generator_.mutex());
  generator_.set_state(state_);
}

at::Tensor dropout_factors(at::IntArrayRef shape, at::ScalarType dtype, double probability,
                           uint64_t seed, at::Device device) {
  if (device.is_meta()) return at::empty(shape, at::dtype(dtype).device(device));
  const double kept = 1.0 - probability;
  const at::Generator generator = at::detail::createCPUGenerator(seed);
  return at::empty(shape, dtype).bernoulli_(kept, generator).div_(kept);
}

at::Tensor dropout(const at::Tensor& x, double probability, uint64_t seed) {
  check(probability >= 0 && probability < 1, ErrorCode::kInvalidArgument, "dropout: probability ",
        probability, "; expected one below 1.");
  if (probability == 0) return x;
  if (!runs_on_gpu(x)) {
    return x * dropout_factors(x.sizes(), x.scalar_type(), probability, seed, x.device());
  }
  const SeededDevice seeded(x.device(), seed);
  return std::get<0>(at::native_dropout(x, probability, /*train=*/true));
}

}  // namespace tessera::ops
