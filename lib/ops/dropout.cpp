// SPDX-License-Identifier: MIT
#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/core/PhiloxRNGEngine.h>

#include <mutex>

#include "lib/core/hash.h"
#include "lib/core/meta.h"
#include "lib/ops/autograd.h"
#include "lib/ops/random.h"
#include "tessera/core/error.h"
#include "tessera/ops/functional.h"

namespace tessera::ops {
namespace {

template <typename T>
void draw_factors(const Dropout& dropout, T* factors, int64_t count) {
  constexpr int64_t kGrain = 8192, kNumbers = 4;  // numbers per Philox block
  const uint64_t seed = dropout.seed_at.defined()
                            ? static_cast<uint64_t>(*dropout.seed_at.const_data_ptr<int64_t>())
                            : dropout.seed;
  const uint32_t threshold = drop_threshold(dropout);
  const auto kept = static_cast<T>(1.0 / (1.0 - dropout.probability));
  at::parallel_for(0, count, kGrain, [&](int64_t begin, int64_t end) {
    at::Philox4_32 numbers;
    for (int64_t i = begin; i < end; ++i) {
      const int64_t element = dropout.first + i, place = element % kNumbers;
      if (i == begin || place == 0) {
        numbers = at::Philox4_32(seed, static_cast<uint64_t>(element / kNumbers));
        for (int64_t skipped = 0; skipped < place; ++skipped) numbers();
      }
      factors[i] = numbers() < threshold ? T(0) : kept;
    }
  });
}

class DropoutFunction : public torch::autograd::Function<DropoutFunction> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const Dropout& dropout) {
    context->saved_data["probability"] = dropout.probability;
    context->saved_data["seed"] = static_cast<int64_t>(dropout.seed);
    context->saved_data["first"] = dropout.first;
    context->saved_data["seed_at"] = dropout.seed_at;
    return dropout_add(x.contiguous(), {}, dropout);
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const Dropout dropout{context->saved_data["probability"].toDouble(),
                          static_cast<uint64_t>(context->saved_data["seed"].toInt()),
                          context->saved_data["first"].toInt(),
                          context->saved_data["seed_at"].toTensor()};
    return {dropout_add(gradients[0].contiguous(), {}, dropout), {}};
  }
};

}  // namespace

uint64_t mixed_seed(uint64_t seed, int64_t number) {
  return xxh3_64(&number, sizeof(number), seed);
}

SeededDevice::SeededDevice(at::Device device, uint64_t seed) {
  if (device.is_meta()) return;  // meta tensors draw nothing
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

at::Tensor dropout_factors(at::IntArrayRef shape, at::ScalarType dtype, const Dropout& dropout,
                           at::Device device) {
  const bool wide = dtype == at::kDouble && device.is_cpu();
  at::Tensor factors = at::empty(shape, at::dtype(wide ? at::kDouble : at::kFloat).device(device));
  if (runs_on_gpu(factors)) {  // drawn by the kernel, which takes all fp32 tensors
    factors = dropout_add(factors.fill_(1), {}, dropout);
  } else if (wide) {
    draw_factors(dropout, factors.mutable_data_ptr<double>(), factors.numel());
  } else if (device.is_cpu()) {
    draw_factors(dropout, factors.mutable_data_ptr<float>(), factors.numel());
  }
  return factors.to(dtype);
}

at::Tensor attention_factors(at::IntArrayRef shape, at::ScalarType dtype,
                             const AttentionDropout& dropout, at::Device device) {
  const std::vector<int64_t> of_head{shape[0], shape[2], shape[3]};
  std::vector<at::Tensor> factors;
  for (int64_t head = 0; head < shape[1]; ++head) {
    const uint64_t seed = mixed_seed(dropout.seed, dropout.first_head + head);
    factors.push_back(dropout_factors(of_head, dtype, {dropout.probability, seed}, device));
  }
  return at::stack(factors, 1);
}

at::Tensor dropout(const at::Tensor& x, double probability, uint64_t seed, int64_t first) {
  return ops::dropout(x, Dropout{probability, seed, first});
}

at::Tensor dropout(const at::Tensor& x, const Dropout& dropout) {
  check(dropout.probability >= 0 && dropout.probability < 1, ErrorCode::kInvalidArgument,
        "dropout: probability ", dropout.probability, "; expected one below 1.");
  if (!dropout.on()) return x;
  return DropoutFunction::apply(x, dropout);
}

}  // namespace tessera::ops
