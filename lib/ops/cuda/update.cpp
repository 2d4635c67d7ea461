// SPDX-License-Identifier: MIT
// AdamW and sums of squares: fills the kernels' tables.
#include "lib/ops/cuda/entries.h"
#include "lib/ops/cuda/support.h"

namespace tessera::ops::cuda {
namespace {

bool is_flat(const at::Tensor& x) {
  return x.is_contiguous() && (is_16_bit(x) || x.scalar_type() == at::kFloat);
}

const float* scalar(const at::Tensor& x) { return static_cast<const float*>(data_or_null(x)); }

// A moment in the given dtype, with its block scales.
bool is_moment(const at::Tensor& x, at::ScalarType type, const at::Tensor& largest) {
  return x.is_cuda() && x.is_contiguous() && x.scalar_type() == type &&
         (type == at::kFloat || type == at::kBFloat16 ||
          (type == at::kByte && largest.defined() && largest.scalar_type() == at::kFloat &&
           largest.is_contiguous()));
}

bool is_master(const AdamWRange& range) {
  if (!range.remainder.defined()) {
    return range.parameter.scalar_type() == at::kFloat && is_flat(range.parameter);
  }
  return range.remainder.scalar_type() == at::kShort && range.remainder.is_contiguous() &&
         range.settles();
}

// True for a range that fits the kernels and has the same dtypes and form as the first one.
bool simple(const AdamWRange& range, const AdamWRange& first) {
  const at::Tensor& low_precision = first.low_precision;
  const at::ScalarType moments = first.exp_avg.scalar_type();
  return is_flat(range.gradient) && range.gradient.scalar_type() == first.gradient.scalar_type() &&
         is_master(range) && range.remainder.defined() == first.remainder.defined() &&
         is_moment(range.exp_avg, moments, range.exp_avg_largest) &&
         is_moment(range.exp_avg_sq, moments, range.exp_avg_sq_largest) &&
         range.low_precision.defined() == low_precision.defined() &&
         (!low_precision.defined() ||
          (is_flat(range.low_precision) &&
           range.low_precision.scalar_type() == low_precision.scalar_type()));
}

// One launch per full table of ranges.
template <typename Table, typename Entry, typename Launch>
void in_tables(std::span<const AdamWRange> ranges, const Entry& entry, const Launch& launch) {
  Table table;
  const auto flush = [&] {
    if (table.count == 0) return;
    launch(table);
    check_launch("adamw");
    table.count = 0;
  };
  for (const AdamWRange& range : ranges) {
    if (table.full()) flush();
    table.add(entry(range));
  }
  flush();
}

}  // namespace

void adamw_update(std::span<const AdamWRange> ranges, const AdamWOptions& options,
                  const AdamWScalars& scalars) {
  const at::Tensor& low = ranges.front().low_precision;
  const at::ScalarType moments = ranges.front().exp_avg.scalar_type();
  for (const AdamWRange& range : ranges) {
    if (!simple(range, ranges.front())) {
      return reference::adamw_update(ranges, options, scalars);
    }
  }
  const at::Tensor step_count = scalars.step_count.to(at::kDouble);
  const AdamWConstants constants{
      .beta1 = options.beta1,
      .beta2 = options.beta2,
      .epsilon = float(options.epsilon),
      .decoupled = options.decoupled,
      .step_count = static_cast<const double*>(step_count.const_data_ptr()),
      .learning_rate = scalar(scalars.learning_rate),
      .gradient_scale = scalar(scalars.gradient_scale),
      .skip = scalar(scalars.skip),
  };
  const Type gradient = type_of(ranges.front().gradient);
  const Type to = low.defined() ? type_of(low) : Type::kFloat;
  const auto entry = [](const AdamWRange& range, auto blank) {
    decltype(blank) entry{.parameter = static_cast<float*>(data_or_null(range.parameter))};
    entry.exp_avg = static_cast<decltype(entry.exp_avg)>(range.exp_avg.data_ptr());
    entry.exp_avg_sq = static_cast<decltype(entry.exp_avg_sq)>(range.exp_avg_sq.data_ptr());
    entry.gradient = range.gradient.data_ptr();
    entry.low_precision = data_or_null(range.low_precision);
    entry.remainder = static_cast<int16_t*>(data_or_null(range.remainder));
    entry.count = range.numel();
    entry.weight_decay = range.weight_decay;
    entry.lr_factor = range.lr_factor;
    return entry;
  };
  if (moments == at::kFloat) {
    return in_tables<AdamWTable>(
        ranges, [&](const AdamWRange& range) { return entry(range, AdamWEntry{}); },
        [&](const AdamWTable& table) { adamw(gradient, to, table, constants, stream()); });
  }
  in_tables<AdamWMomentsTable>(
      ranges,
      [&](const AdamWRange& range) {
        AdamWMomentsEntry with = entry(range, AdamWMomentsEntry{});
        with.exp_avg_largest = static_cast<float*>(data_or_null(range.exp_avg_largest));
        with.exp_avg_sq_largest = static_cast<float*>(data_or_null(range.exp_avg_sq_largest));
        return with;
      },
      [&](const AdamWMomentsTable& table) {
        const auto kernel = moments == at::kByte ? adamw_8bit_moments : adamw_bf16_moments;
        kernel(gradient, to, table, constants, stream());
      });
}

at::Tensor square_sum(std::span<const at::Tensor> tensors) {
  const at::ScalarType type = tensors.front().scalar_type();
  for (const at::Tensor& x : tensors) {
    if (!is_flat(x) || x.scalar_type() != type) return reference::square_sum(tensors);
  }
  const int64_t tables = int64_t(tensors.size() + SquareSumTable::kMax - 1) / SquareSumTable::kMax;
  const auto options = tensors.front().options();
  const at::Tensor partial = at::empty({tables * kSquareSumParts}, options.dtype(at::kDouble));
  double* out = static_cast<double*>(partial.data_ptr());
  for (size_t first = 0; first < tensors.size(); first += SquareSumTable::kMax) {
    SquareSumTable table;
    table.first_chunk[0] = 0;
    for (size_t i = first; i < std::min(tensors.size(), first + SquareSumTable::kMax); ++i) {
      const int64_t count = tensors[i].numel();
      const int chunks = int((count + kSquareSumChunk - 1) / kSquareSumChunk);
      table.data[table.count] = tensors[i].data_ptr();
      table.count_of[table.count] = count;
      table.first_chunk[table.count + 1] = table.first_chunk[table.count] + chunks;
      ++table.count;
    }
    square_sum(type_of(tensors.front()), table, out, stream());
    check_launch("square_sum");
    out += kSquareSumParts;
  }
  at::Tensor result = at::empty({}, options.dtype(at::kFloat));
  add_partials(static_cast<const double*>(partial.data_ptr()), int(partial.numel()),
               static_cast<float*>(result.data_ptr()), stream());
  check_launch("add_partials");
  return result;
}

Clipping clipping(const at::Tensor& squared_norm, const at::Tensor& loss_scale, double max_norm) {
  const auto is_scalar = [](const at::Tensor& x) {
    return x.is_cuda() && x.numel() == 1 && x.scalar_type() == at::kFloat;
  };
  if (!is_scalar(squared_norm) || !is_scalar(loss_scale)) {
    return reference::clipping(squared_norm, loss_scale, max_norm);
  }
  const at::Tensor results = at::empty({4}, squared_norm.options());
  clipping(scalar(squared_norm), scalar(loss_scale), float(max_norm),
           static_cast<float*>(results.data_ptr()), stream());
  check_launch("clipping");
  return {results[0], results[1], results[2], results[3]};
}

}  // namespace tessera::ops::cuda
