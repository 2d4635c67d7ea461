#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <vector>

#include "lib/ops/cpu/cpu_ops.h"
#include "lib/ops/cpu/kernels.h"
#include "lib/ops/reference.h"

namespace tessera::ops::cpu {
namespace {

// None for what the kernels do not know.
std::optional<Type> type_of(const at::Tensor& x) {
  if (!x.defined()) return Type::kNone;
  if (!x.is_cpu() || !x.is_contiguous()) return std::nullopt;
  switch (x.scalar_type()) {
    case at::kFloat:
      return Type::kFloat;
    case at::kBFloat16:
      return Type::kBFloat16;
    case at::kHalf:
      return Type::kHalf;
    default:
      return std::nullopt;
  }
}

bool is_fp32(const at::Tensor& x) { return x.defined() && type_of(x) == Type::kFloat; }

bool simple(const AdamWRange& range) {
  return is_fp32(range.parameter) && is_fp32(range.exp_avg) && is_fp32(range.exp_avg_sq) &&
         range.gradient.defined() && type_of(range.gradient) && type_of(range.low_precision);
}

double value_or(const at::Tensor& scalar, double otherwise) {
  return scalar.defined() ? scalar.item<double>() : otherwise;
}

void* at_element(const at::Tensor& x, int64_t index) {
  if (!x.defined()) return nullptr;
  return static_cast<char*>(x.data_ptr()) + index * static_cast<int64_t>(x.element_size());
}

// Calls fn(tensor, first element, count, chunk) for the chunks of all tensors, on several threads.
template <typename Numel, typename Fn>
int64_t for_chunks(size_t tensors, const Numel& numel, const Fn& fn) {
  std::vector<int64_t> first_chunk{0};
  for (size_t i = 0; i < tensors; ++i) {
    first_chunk.push_back(first_chunk.back() + (numel(i) + kChunk - 1) / kChunk);
  }
  at::parallel_for(0, first_chunk.back(), 1, [&](int64_t begin, int64_t end) {
    for (int64_t chunk = begin; chunk < end; ++chunk) {
      const auto after = std::upper_bound(first_chunk.begin(), first_chunk.end(), chunk);
      const auto i = static_cast<size_t>(after - first_chunk.begin()) - 1;
      const int64_t first = (chunk - first_chunk[i]) * kChunk;
      fn(i, first, std::min(kChunk, numel(i) - first), chunk);
    }
  });
  return first_chunk.back();
}

}  // namespace

void adamw_update(std::span<const AdamWRange> ranges, const AdamWOptions& options,
                  const AdamWScalars& scalars) {
  if (!std::all_of(ranges.begin(), ranges.end(), simple)) {
    return reference::adamw_update(ranges, options, scalars);
  }
  if (value_or(scalars.skip, 0) != 0) return;
  const double learning_rate = scalars.learning_rate.item<double>();
  const double step = scalars.step_count.item<double>();
  AdamWConstants shared{};
  shared.gradient_scale = static_cast<float>(value_or(scalars.gradient_scale, 1));
  shared.one_minus_beta1 = static_cast<float>(1 - options.beta1);
  shared.beta2 = static_cast<float>(options.beta2);
  shared.one_minus_beta2 = static_cast<float>(1 - options.beta2);
  shared.inverse_root = static_cast<float>(1 / std::sqrt(1 - std::pow(options.beta2, step)));
  shared.epsilon = static_cast<float>(options.epsilon);
  const double correction1 = 1 - std::pow(options.beta1, step);
  for_chunks(
      ranges.size(), [&](size_t i) { return ranges[i].parameter.numel(); },
      [&](size_t i, int64_t first, int64_t count, int64_t) {
        const AdamWRange& range = ranges[i];
        AdamWConstants constants = shared;
        const double rate = learning_rate * range.lr_factor;
        constants.keep =
            static_cast<float>(1 - (options.decoupled ? rate * range.weight_decay : 0));
        constants.l2 = static_cast<float>(options.decoupled ? 0 : range.weight_decay);
        constants.step_size = static_cast<float>(rate / correction1);
        adamw({static_cast<float*>(at_element(range.parameter, first)),
               static_cast<float*>(at_element(range.exp_avg, first)),
               static_cast<float*>(at_element(range.exp_avg_sq, first)),
               at_element(range.gradient, first), at_element(range.low_precision, first)},
              count, *type_of(range.gradient), *type_of(range.low_precision), constants);
      });
}

at::Tensor square_sum(std::span<const at::Tensor> tensors) {
  for (const at::Tensor& x : tensors) {
    if (!x.defined() || !type_of(x)) return reference::square_sum(tensors);
  }
  int64_t chunks = 0;
  for (const at::Tensor& x : tensors) chunks += (x.numel() + kChunk - 1) / kChunk;
  std::vector<double> partial(static_cast<size_t>(chunks));
  for_chunks(
      tensors.size(), [&](size_t i) { return tensors[i].numel(); },
      [&](size_t i, int64_t first, int64_t count, int64_t chunk) {
        partial[static_cast<size_t>(chunk)] =
            square_sum(at_element(tensors[i], first), count, *type_of(tensors[i]));
      });
  double sum = 0;
  for (double part : partial) sum += part;
  if (sum > std::numeric_limits<float>::max()) sum = std::numeric_limits<double>::infinity();
  return at::full({}, sum, tensors.front().options().dtype(at::kFloat));
}

}  // namespace tessera::ops::cpu
