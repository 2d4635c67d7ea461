// SPDX-License-Identifier: MIT
#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <optional>
#include <vector>

#include "lib/ops/adamw_step.h"
#include "lib/ops/cpu/cpu_ops.h"
#include "lib/ops/cpu/kernels.h"
#include "lib/ops/moment_map.h"
#include "lib/ops/reference.h"

namespace tessera::ops::cpu {
namespace {

// Empty for dtypes that the kernels lack.
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

// A moment in the given dtype, with its block scales.
bool is_moment(const at::Tensor& x, at::ScalarType type, const at::Tensor& largest) {
  return x.is_cpu() && x.is_contiguous() && x.scalar_type() == type &&
         (type == at::kFloat || type == at::kBFloat16 || (type == at::kByte && is_fp32(largest)));
}

bool is_master(const AdamWRange& range) {
  if (!range.remainder.defined()) return is_fp32(range.parameter);
  return range.remainder.is_cpu() && range.remainder.is_contiguous() &&
         range.remainder.scalar_type() == at::kShort && range.settles();
}

bool simple(const AdamWRange& range) {
  const at::ScalarType moments = range.exp_avg.scalar_type();
  return is_master(range) && is_moment(range.exp_avg, moments, range.exp_avg_largest) &&
         is_moment(range.exp_avg_sq, moments, range.exp_avg_sq_largest) &&
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

// A block of 8-bit moments in fp32, as the kernels read and write it.
class MomentInBlocks {
 public:
  MomentInBlocks(const at::Tensor& codes, const at::Tensor& largest, bool is_signed)
      : codes_(codes), largest_(largest), is_signed_(is_signed) {}

  float* load(int64_t first, int64_t count) {
    const auto* from = static_cast<const uint8_t*>(at_element(codes_, first));
    if (count < kMomentBlock) {  // elements beyond the end are zeros
      std::memset(bytes_, 0, sizeof bytes_);
      std::memcpy(bytes_, from, static_cast<size_t>(count));
      from = bytes_;
    }
    decode_block(from, *largest_of(first), is_signed_, values_);
    return values_;
  }
  // Writes back the block that load() returned.
  void store(int64_t first, int64_t count) {
    void* kept = at_element(codes_, first);
    auto* to = count < kMomentBlock ? bytes_ : static_cast<uint8_t*>(kept);
    *largest_of(first) = encode_block(values_, is_signed_, to);
    if (to == bytes_) std::memcpy(kept, bytes_, static_cast<size_t>(count));
  }

 private:
  float* largest_of(int64_t first) const {
    return static_cast<float*>(at_element(largest_, first / kMomentBlock));
  }

  const at::Tensor &codes_, &largest_;
  const bool is_signed_;
  alignas(64) float values_[kMomentBlock];
  alignas(64) uint8_t bytes_[kMomentBlock];
};

// Elements [first, first + count) with moments at the given addresses.
void adamw_part(const AdamWRange& range, int64_t first, int64_t count, void* exp_avg,
                void* exp_avg_sq, Type moments, const AdamWConstants& constants) {
  adamw({static_cast<float*>(at_element(range.parameter, first)), exp_avg, exp_avg_sq,
         at_element(range.gradient, first), at_element(range.low_precision, first),
         static_cast<int16_t*>(at_element(range.remainder, first))},
        count, {*type_of(range.gradient), *type_of(range.low_precision), moments}, constants);
}

// first: a multiple of kMomentBlock.
void adamw_in_blocks(const AdamWRange& range, int64_t first, int64_t count,
                     const AdamWConstants& constants) {
  MomentInBlocks exp_avg(range.exp_avg, range.exp_avg_largest, /*is_signed=*/true);
  MomentInBlocks exp_avg_sq(range.exp_avg_sq, range.exp_avg_sq_largest, /*is_signed=*/false);
  for (const int64_t end = first + count; first < end; first += kMomentBlock) {
    const int64_t in_block = std::min<int64_t>(kMomentBlock, end - first);
    adamw_part(range, first, in_block, exp_avg.load(first, in_block),
               exp_avg_sq.load(first, in_block), Type::kFloat, constants);
    exp_avg.store(first, in_block);
    exp_avg_sq.store(first, in_block);
  }
}

}  // namespace

void adamw_update(std::span<const AdamWRange> ranges, const AdamWOptions& options,
                  const AdamWScalars& scalars) {
  if (!std::all_of(ranges.begin(), ranges.end(), simple)) {
    return reference::adamw_update(ranges, options, scalars);
  }
  if (value_or(scalars.skip, 0) != 0) return;
  const double learning_rate = scalars.learning_rate.item<double>();
  const auto step = static_cast<int64_t>(scalars.step_count.item<double>());
  AdamWConstants shared{};
  shared.gradient_scale = static_cast<float>(value_or(scalars.gradient_scale, 1));
  shared.one_minus_beta1 = static_cast<float>(1 - options.beta1);
  shared.beta2 = static_cast<float>(options.beta2);
  shared.one_minus_beta2 = static_cast<float>(1 - options.beta2);
  shared.inverse_root = inverse_root_of_correction(options.beta2, step);
  shared.epsilon = static_cast<float>(options.epsilon);
  shared.dither = second_moment_dither(step);
  for_chunks(
      ranges.size(), [&](size_t i) { return ranges[i].numel(); },
      [&](size_t i, int64_t first, int64_t count, int64_t) {
        const AdamWRange& range = ranges[i];
        AdamWConstants constants = shared;
        const AdamWRates rates = adamw_rates(learning_rate * range.lr_factor, range.weight_decay,
                                             options.decoupled, options.beta1, step);
        constants.keep = rates.keep;
        constants.l2 = rates.l2;
        constants.step_size = rates.step_size;
        if (range.exp_avg.scalar_type() == at::kByte) {
          return adamw_in_blocks(range, first, count, constants);
        }
        adamw_part(range, first, count, at_element(range.exp_avg, first),
                   at_element(range.exp_avg_sq, first), *type_of(range.exp_avg), constants);
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
