// SPDX-License-Identifier: MIT
#include "lib/generation/row_batch.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <utility>

#include "tessera/model/model_spec.h"

namespace tessera {
namespace {

at::Tensor host_tensor(at::IntArrayRef shape, int64_t value, at::Device device) {
  return at::full(shape, value, at::TensorOptions(at::kLong).pinned_memory(!device.is_cpu()));
}

// In [0, 1), one for every token of every prompt.
double uniform_number(uint64_t seed, size_t place, size_t token) {
  return static_cast<double>(block_seed(block_seed(seed, place), token) >> 11) * 0x1p-53;
}

}  // namespace

RowBatch::RowBatch(const Shape& shape, std::span<const std::vector<int64_t>> prompts,
                   std::vector<size_t> places, const GenerationOptions& options,
                   std::shared_ptr<KeyValueCache> cache)
    : shape_(shape), places_(std::move(places)), options_(options), cache_(std::move(cache)) {
  const int64_t width = cache_ != nullptr ? shape.width : shape.capacity;
  const auto move = [&](const at::Tensor& host) { return host.to(shape.device, true); };
  const at::Tensor ids = host_tensor({shape.rows, width}, options.fill_token, shape.device);
  const at::Tensor lengths = host_tensor({shape.rows}, 1, shape.device);
  const at::Tensor limits = host_tensor({shape.rows}, 0, shape.device);
  for (size_t row = 0; row < places_.size(); ++row) {
    const std::vector<int64_t>& prompt = prompts[places_[row]];
    const auto length = static_cast<int64_t>(prompt.size());
    std::ranges::copy(prompt, ids.mutable_data_ptr<int64_t>() + static_cast<int64_t>(row) * width);
    lengths.mutable_data_ptr<int64_t>()[row] = length;
    limits.mutable_data_ptr<int64_t>()[row] =
        options.max_positions == 0
            ? options.max_new_tokens
            : std::min(options.max_new_tokens, options.max_positions - length);
  }
  ids_ = move(ids);
  prompt_ = move(lengths);
  limit_ = move(limits);
  count_ = at::zeros_like(prompt_);
  finished_ = limit_.eq(0);
  at_end_ = at::zeros_like(finished_);
  tokens_ = at::full({shape.rows, shape.tokens}, options.fill_token, prompt_.options());
  if (!options.end_tokens.empty()) end_tokens_ = move(at::tensor(options.end_tokens, at::kLong));
  if (!options.sampling) return;
  const at::Tensor uniform = at::zeros({shape.tokens, shape.rows}, at::kDouble);
  for (int64_t token = 0; token < shape.tokens; ++token) {
    double* numbers = uniform.mutable_data_ptr<double>() + token * shape.rows;
    for (size_t row = 0; row < places_.size(); ++row) {
      numbers[row] =
          uniform_number(options.sampling->seed, places_[row], static_cast<size_t>(token));
    }
  }
  uniform_ = move(uniform);
}

MicroBatch RowBatch::next() const {
  MicroBatch batch;
  const at::Tensor last = prompt_ + count_ - 1;  // the place of each row's last token
  if (cache_ != nullptr && step_ > 0) {
    batch.input_ids = tokens_.narrow(1, step_ - 1, 1).contiguous();
    batch.so_far = {cache_, last};
  } else {
    const int64_t width = std::min(shape_.width + step_, ids_.size(1));
    batch.input_ids = ids_.narrow(1, 0, width).contiguous();
    batch.head_positions = at::arange(shape_.rows, last.options()) * width + last;
    batch.so_far.cache = cache_;
  }
  batch.sample_count = static_cast<int64_t>(places_.size());
  batch.target_count = batch.sample_count;
  batch.token_count = batch.input_ids.numel();
  return batch;
}

at::Tensor RowBatch::choose(const at::Tensor& scores) const {
  const at::Tensor rows = scores.dim() == 3 ? scores.flatten(0, 1) : scores;
  if (!uniform_.defined()) return best_token(rows);
  return sampled_token(rows, uniform_.select(0, step_), *options_.sampling);
}

void RowBatch::take(const at::Tensor& chosen) {
  const at::Tensor goes_on = finished_.logical_not();
  const at::Tensor token = chosen.masked_fill(finished_, options_.fill_token);
  tokens_.select(1, step_).copy_(token);
  if (cache_ == nullptr) {
    const at::Tensor place = (prompt_ + count_).clamp_max_(ids_.size(1) - 1).unsqueeze(1);
    ids_.scatter_(1, place, token.unsqueeze(1));
  }
  count_.add_(goes_on);
  if (end_tokens_.defined()) {
    at_end_.logical_or_(chosen.unsqueeze(1).eq(end_tokens_).any(1).logical_and_(goes_on));
  }
  finished_ = at_end_.logical_or(count_.ge(limit_));
  ++step_;
}

at::Tensor RowBatch::unfinished() const { return finished_.logical_not().sum(); }

at::Tensor RowBatch::result() const {
  return at::cat({count_.unsqueeze(1), at_end_.unsqueeze(1).to(at::kLong), tokens_}, 1);
}

}  // namespace tessera
