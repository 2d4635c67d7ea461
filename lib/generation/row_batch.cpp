// SPDX-License-Identifier: MIT
#include "lib/generation/row_batch.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <utility>

#include "tessera/model/model_spec.h"

namespace tessera {
namespace {

at::Tensor host_tensor(at::IntArrayRef shape, at::ScalarType type, int64_t value,
                       at::Device device) {
  return at::full(shape, value, at::TensorOptions(type).pinned_memory(!device.is_cpu()));
}

// Uniform in [0, 1), one per token of every prompt.
double uniform_number(uint64_t seed, size_t place, size_t token) {
  return static_cast<double>(block_seed(block_seed(seed, place), token) >> 11) * 0x1p-53;
}

}  // namespace

RowBatch::RowBatch(const Shape& shape, const GenerationOptions& options,
                   std::shared_ptr<KeyValueCache> cache)
    : shape_(shape), options_(options), cache_(std::move(cache)) {
  const auto whole = at::TensorOptions(at::kLong).device(shape.device);
  last_ = at::zeros({shape.rows}, whole);
  limit_ = at::zeros_like(last_);
  count_ = at::zeros_like(last_);
  finished_ = at::zeros({shape.rows}, whole.dtype(at::kBool));
  at_end_ = at::zeros_like(finished_);
  written_ = at::zeros({1}, whole);
  token_ = at::zeros({shape.rows, 1}, whole);
  tokens_ = at::zeros({shape.rows, shape.tokens}, whole);
  fill_ = at::full({}, options.fill_token, whole);
  if (!options.end_tokens.empty()) {
    end_tokens_ = at::tensor(options.end_tokens, at::kLong).to(shape.device);
  }
  if (options.sampling) uniform_ = at::zeros({shape.tokens, shape.rows}, whole.dtype(at::kDouble));
}

void RowBatch::begin(Prompts prompts, std::vector<size_t> places, int64_t width) {
  places_ = std::move(places);
  width_ = width;
  begun_ = false;
  const auto host = [&] { return host_tensor({shape_.rows}, at::kLong, 0, shape_.device); };
  const at::Tensor last = host(), limits = host();
  for (size_t row = 0; row < places_.size(); ++row) {
    const auto length = static_cast<int64_t>(prompts[places_[row]].size());
    last.mutable_data_ptr<int64_t>()[row] = length - 1;
    limits.mutable_data_ptr<int64_t>()[row] =
        options_.max_positions == 0
            ? options_.max_new_tokens
            : std::min(options_.max_new_tokens, options_.max_positions - length);
  }
  last_.copy_(last, /*non_blocking=*/true);
  limit_.copy_(limits, /*non_blocking=*/true);
  count_.zero_();
  at::eq_out(finished_, limit_, 0);
  at_end_.zero_();
  written_.zero_();
  tokens_.fill_(options_.fill_token);
  if (packs_) {
    pack(prompts);
  } else {
    pad(prompts);
  }
  if (options_.sampling) draw(options_.sampling->seed);
}

void RowBatch::pad(Prompts prompts) {
  const int64_t held = cache_ != nullptr ? width_ : shape_.capacity;
  const at::Tensor ids =
      host_tensor({shape_.rows, held}, at::kLong, options_.fill_token, shape_.device);
  for (size_t row = 0; row < places_.size(); ++row) {
    std::ranges::copy(prompts[places_[row]],
                      ids.mutable_data_ptr<int64_t>() + static_cast<int64_t>(row) * held);
  }
  ids_ = ids.to(shape_.device, /*non_blocking=*/true);
}

// Rows without a prompt use arbitrary scores.
void RowBatch::pack(Prompts prompts) {
  std::vector<int64_t> lengths;
  int64_t tokens = 0;
  for (const size_t place : places_) {
    lengths.push_back(static_cast<int64_t>(prompts[place].size()));
    tokens += lengths.back();
  }
  const int64_t all = std::max<int64_t>(
      (tokens + kPackedMultiple - 1) / kPackedMultiple * kPackedMultiple, kPackedMultiple);
  for (int64_t left = all - tokens; left > 0; left -= lengths.back()) {
    lengths.push_back(std::min(left, shape_.capacity));
  }
  const bool pinned = !shape_.device.is_cpu();
  MicroBatch batch;
  batch.input_ids = host_tensor({1, all}, at::kLong, options_.fill_token, shape_.device);
  batch.head_positions = host_tensor({shape_.rows}, at::kLong, 0, shape_.device);
  int64_t end = 0;
  for (size_t row = 0; row < places_.size(); ++row) {
    std::ranges::copy(prompts[places_[row]], batch.input_ids.mutable_data_ptr<int64_t>() + end);
    end += lengths[row];
    batch.head_positions.mutable_data_ptr<int64_t>()[row] = end - 1;
  }
  batch.packed = make_packed_rows(std::move(lengths), all, pinned);
  beginning_ = batch.to(shape_.device);
}

void RowBatch::draw(uint64_t seed) {
  const at::Tensor uniform =
      host_tensor({shape_.tokens, shape_.rows}, at::kDouble, 0, shape_.device);
  for (int64_t token = 0; token < shape_.tokens; ++token) {
    double* numbers = uniform.mutable_data_ptr<double>() + token * shape_.rows;
    for (size_t row = 0; row < places_.size(); ++row) {
      numbers[row] = uniform_number(seed, places_[row], static_cast<size_t>(token));
    }
  }
  uniform_.copy_(uniform, /*non_blocking=*/true);
}

MicroBatch RowBatch::next() const {
  MicroBatch batch;
  if (cache_ != nullptr && begun_) {
    batch.input_ids = token_;
    batch.decode_state = {cache_, last_};
  } else if (beginning_.packed.defined()) {
    batch = beginning_;
    batch.decode_state.cache = cache_;
  } else {
    batch.input_ids = ids_.narrow(1, 0, width_).contiguous();
    batch.head_positions = at::arange(shape_.rows, last_.options()) * width_ + last_;
    batch.decode_state.cache = cache_;
  }
  batch.sample_count = static_cast<int64_t>(places_.size());
  batch.target_count = batch.sample_count;
  batch.token_count = batch.input_ids.numel();
  return batch;
}

at::Tensor RowBatch::choose(const at::Tensor& scores) const {
  const at::Tensor rows = scores.dim() == 3 ? scores.flatten(0, 1) : scores;
  if (!uniform_.defined()) return best_token(rows);
  return sampled_token(rows, uniform_.index_select(0, written_).squeeze(0), *options_.sampling);
}

void RowBatch::take(const at::Tensor& chosen) {
  const at::Tensor goes_on = finished_.logical_not();
  at::Tensor token = token_.squeeze(1);
  at::where_out(token, finished_, fill_, chosen);
  tokens_.scatter_(1, written_.expand_as(token_), token_);
  if (cache_ == nullptr) {
    ids_.scatter_(1, (last_ + 1).clamp_max_(ids_.size(1) - 1).unsqueeze(1), token_);
    width_ = std::min(width_ + 1, ids_.size(1));
  }
  written_.add_(1);
  count_.add_(goes_on);
  last_.add_(goes_on);
  if (end_tokens_.defined()) {
    at_end_.logical_or_(chosen.unsqueeze(1).eq(end_tokens_).any(1).logical_and_(goes_on));
  }
  at::logical_or_out(finished_, at_end_, count_.ge(limit_));
  begun_ = true;
}

at::Tensor RowBatch::unfinished() const { return finished_.logical_not().sum(); }

at::Tensor RowBatch::result() const {
  return at::cat({count_.unsqueeze(1), at_end_.unsqueeze(1).to(at::kLong), tokens_}, 1);
}

}  // namespace tessera
