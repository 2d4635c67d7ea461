// SPDX-License-Identifier: MIT
#include "tessera/model/batch_norm.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "tessera/core/error.h"
#include "tessera/model/all_gather.h"

namespace tessera::detail {
namespace {

struct ChannelStatistics {
  at::Tensor mean, variance;  // [channels], over all ranks; biased variance
  at::Tensor count;           // scalar: values per channel
};

ChannelStatistics over_all_ranks(const at::Tensor& values, const BlockContext& context) {
  const int64_t channels = values.size(1), count = values.numel() / std::max<int64_t>(channels, 1);
  std::vector<int64_t> others;
  for (int64_t dim = 0; dim < values.dim(); ++dim) {
    if (dim != 1) others.push_back(dim);
  }
  const at::Tensor own = at::cat({values.mean(others), values.var(others, /*unbiased=*/false),
                                  at::full({1}, static_cast<double>(count), values.options())});
  const at::Tensor all = all_gather(own.unsqueeze(0), context);  // [ranks, 2 channels + 1]
  const at::Tensor counts = all.narrow(1, 2 * channels, 1).detach();
  const at::Tensor share = counts / counts.sum();
  const at::Tensor means = all.narrow(1, 0, channels);
  const at::Tensor mean = (share * means).sum(0);
  const at::Tensor variance =
      (share * (all.narrow(1, channels, channels) + (means - mean).square())).sum(0);
  return {mean, variance, counts.sum()};
}

void advance(const BatchNormState& norm, const ChannelStatistics& statistics) {
  if (!norm.running_mean.defined()) return;
  const at::NoGradGuard no_grad;
  norm.num_batches_tracked.add_(1);
  const at::Tensor count = statistics.count;
  const at::Tensor unbiased = statistics.variance * (count / (count - 1));
  const auto move = [&](const at::Tensor& running, const at::Tensor& now) {
    const at::Tensor step = (now - running).to(running.scalar_type());
    if (norm.momentum) {
      running.add_(step, *norm.momentum);
    } else {
      running.add_(step / norm.num_batches_tracked);
    }
  };
  move(norm.running_mean, statistics.mean);
  move(norm.running_var, unbiased);
}

}  // namespace

at::Tensor global_batch_norm(const BatchNormState& norm, const at::Tensor& input,
                             const BlockContext& context) {
  check(input.defined() && input.dim() >= 2, ErrorCode::kInvalidArgument,
        "global_batch_norm: the input is [rows, channels, ...], not of ",
        input.defined() ? input.dim() : 0, " dimensions");
  const at::Tensor& one = norm.weight.defined() ? norm.weight : norm.running_mean;
  check(!one.defined() || one.numel() == input.size(1), ErrorCode::kInvalidArgument,
        "global_batch_norm: the input has ", input.size(1), " channels, the module ",
        one.defined() ? one.numel() : 0);
  const int64_t values = input.numel() / std::max<int64_t>(input.size(1), 1);
  check(values > 0, ErrorCode::kInvalidArgument,
        "global_batch_norm: this rank's micro-batch has no rows, of shape ", input.sizes(),
        "; every data rank needs at least one. Where data runs out give a row that counts for "
        "nothing, with kIgnoredLabel");
  check(values * data_ranks(context) > 1, ErrorCode::kInvalidArgument,
        "global_batch_norm: one value a channel has no variance; a batch needs more rows");
  const at::Tensor wide = input.to(at::kFloat);
  const ChannelStatistics statistics = over_all_ranks(wide, context);
  advance(norm, statistics);
  std::vector<int64_t> shape(static_cast<size_t>(input.dim()), 1);
  shape[1] = input.size(1);
  at::Tensor scale = (statistics.variance + norm.epsilon).rsqrt();
  if (norm.weight.defined()) scale = scale * norm.weight.to(at::kFloat);
  at::Tensor shift = -statistics.mean * scale;
  if (norm.bias.defined()) shift = shift + norm.bias.to(at::kFloat);
  return at::addcmul(shift.view(shape), wide, scale.view(shape)).to(input.scalar_type());
}

}  // namespace tessera::detail
