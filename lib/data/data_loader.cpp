#include "tessera/data/data_loader.h"

#include <ATen/Functions.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "tessera/core/error.h"

namespace tessera {
namespace {

void require_positive(int64_t value, const char* name) {
  check(value > 0, ErrorCode::kInvalidArgument, "DataLoader: ", name, " is ", value,
        ", expected at least 1");
}

// Whether a row is real tokens followed by positions that are masked and not supervised: then a
// model with causal attention computes the same supervised numbers without the mask.
bool masked_only_at_end(const TokenRow& row, Task task) {
  const auto& mask = row.attention_mask;
  const auto real_end = std::find(mask.begin(), mask.end(), 0);
  if (std::find(real_end, mask.end(), 1) != mask.end()) return false;
  if (task == Task::kClassification) return true;
  for (auto token = static_cast<size_t>(real_end - mask.begin()); token < mask.size(); ++token) {
    if (row.label_at(token) != kIgnoredLabel) return false;
  }
  return true;
}

}  // namespace

std::vector<int64_t> shuffled_order(int64_t count, uint64_t seed, int64_t epoch) {
  std::vector<int64_t> order(static_cast<size_t>(count));
  std::iota(order.begin(), order.end(), int64_t{0});
  // The standard fixes this generator's and std::seed_seq's output; distributions it leaves open,
  // hence the own one.
  std::seed_seq sequence{seed, seed >> 32, static_cast<uint64_t>(epoch)};
  std::mt19937_64 random(sequence);
  for (uint64_t left = order.size(); left > 1; --left) {
    const uint64_t fair =
        UINT64_MAX - UINT64_MAX % left;  // a multiple of left: no index is likelier
    uint64_t drawn = random();
    while (drawn >= fair) drawn = random();
    std::swap(order[left - 1], order[drawn % left]);
  }
  return order;
}

DataLoader::DataLoader(TokenTable rows, const DataLoaderOptions& options)
    : rows_(std::move(rows)), options_(options) {
  require_positive(options.micro_batch_size, "micro_batch_size");
  require_positive(options.accumulation_steps, "accumulation_steps");
  require_positive(options.data_size, "data_size");
  check(options.data_rank >= 0 && options.data_rank < options.data_size,
        ErrorCode::kInvalidArgument, "DataLoader: data_rank ", options.data_rank,
        " is not below data_size ", options.data_size);
  check(rows_.size() > 0, ErrorCode::kInvalidArgument, "DataLoader: the data set has no rows");
  check(options.last_batch == LastBatch::kPad || rows_.size() >= global_batch_size(),
        ErrorCode::kInvalidArgument, "DataLoader: the data set has ", rows_.size(),
        " rows, fewer than one global batch of ", global_batch_size(),
        "; use a smaller batch, or pad the last one");
  const int64_t longest = options.pad_to == 0 ? 0 : rows_.longest();
  check(longest <= options.pad_to, ErrorCode::kInvalidArgument, "DataLoader: a row has ", longest,
        " tokens, more than the length to pad to, ", options.pad_to);
}

int64_t DataLoader::global_batch_size() const {
  return options_.micro_batch_size * options_.accumulation_steps * options_.data_size;
}

int64_t DataLoader::steps_per_epoch() const {
  const int64_t batch = global_batch_size();
  const int64_t extra = options_.last_batch == LastBatch::kPad ? batch - 1 : 0;
  return (rows_.size() + extra) / batch;
}

bool DataLoader::epoch_finished() const {
  const int64_t needed = options_.last_batch == LastBatch::kPad ? 1 : global_batch_size();
  return rows_.size() - state_.consumed < needed;
}

void DataLoader::restore(const DataLoaderState& state) {
  check(state.epoch >= 0 && state.consumed >= 0 && state.consumed <= rows_.size(),
        ErrorCode::kInvalidArgument, "DataLoader: epoch ", state.epoch, " with ", state.consumed,
        " rows consumed is no state of a data set with ", rows_.size(), " rows");
  state_ = state;
}

const std::vector<int64_t>& DataLoader::order() {
  if (order_epoch_ != state_.epoch) {
    if (options_.shuffle) {
      order_ = shuffled_order(rows_.size(), options_.seed, state_.epoch);
    } else if (order_.empty()) {
      order_.resize(static_cast<size_t>(rows_.size()));
      std::iota(order_.begin(), order_.end(), int64_t{0});
    }
    order_epoch_ = state_.epoch;
  }
  return order_;
}

std::vector<MicroBatch> DataLoader::next() {
  if (epoch_finished()) state_ = {state_.epoch + 1, 0};
  const auto& order = this->order();
  const int64_t part = options_.micro_batch_size * options_.accumulation_steps;
  int64_t at = state_.consumed + part * options_.data_rank;
  std::vector<MicroBatch> batches;
  for (int64_t step = 0; step < options_.accumulation_steps; ++step) {
    std::vector<std::optional<TokenRow>> rows;  // none: a row that fills the batch
    for (int64_t i = 0; i < options_.micro_batch_size; ++i, ++at) {
      rows.emplace_back();
      if (at < rows_.size()) rows.back() = rows_.row(order[static_cast<size_t>(at)]);
    }
    batches.push_back(collate(rows));
  }
  state_.consumed = std::min(state_.consumed + global_batch_size(), rows_.size());
  return batches;
}

MicroBatch DataLoader::collate(const std::vector<std::optional<TokenRow>>& rows) const {
  const bool causal = rows_.task() == Task::kCausal;
  const auto count = static_cast<int64_t>(rows.size());
  int64_t length = std::max(options_.pad_to, int64_t{1});
  for (const auto& row : rows) {
    if (row) length = std::max(length, static_cast<int64_t>(row->input_ids.size()));
  }
  MicroBatch batch;
  const auto in_memory = [&](at::ScalarType dtype) {
    return at::TensorOptions(dtype).pinned_memory(options_.pinned);
  };
  batch.input_ids = at::full({count, length}, options_.pad_id, in_memory(at::kLong));
  batch.labels = causal ? at::full({count, length}, kIgnoredLabel, in_memory(at::kLong))
                        : at::full({count}, kIgnoredLabel, in_memory(at::kLong));
  at::Tensor mask = at::zeros({count, length}, in_memory(at::kBool));
  auto* ids = batch.input_ids.mutable_data_ptr<int64_t>();
  auto* labels = batch.labels.mutable_data_ptr<int64_t>();
  auto* attended = mask.mutable_data_ptr<bool>();
  bool padding = false;
  // Supervised padding does see the mask.
  bool mask_matters = !options_.causal_attention || (causal && options_.supervise_padding);
  for (int64_t b = 0; b < count; ++b, ids += length, attended += length) {
    const std::optional<TokenRow>& row = rows[static_cast<size_t>(b)];
    const int64_t tokens = row ? static_cast<int64_t>(row->input_ids.size()) : 1;
    const int64_t first = options_.padding_side == PaddingSide::kLeft ? length - tokens : 0;
    padding = padding || tokens < length;
    mask_matters = mask_matters || (tokens < length && first > 0 && row.has_value());
    if (!row) {
      // One token to attend to, which must differ from padding for models that look for the last
      // real one.
      ids[first] = options_.pad_id == 0 ? 1 : 0;
      attended[first] = true;
      continue;
    }
    ++batch.sample_count;
    std::copy(row->input_ids.begin(), row->input_ids.end(), ids + first);
    if (row->attention_mask.empty()) {
      std::fill_n(attended + first, tokens, true);
    } else {
      std::copy(row->attention_mask.begin(), row->attention_mask.end(), attended + first);
      padding = padding || std::count(attended + first, attended + first + tokens, false) > 0;
      mask_matters = mask_matters || !masked_only_at_end(*row, rows_.task());
    }
    if (!causal) {
      labels[b] = row->label;
      continue;
    }
    // Position s predicts what stands at s + 1 of the padded row.
    int64_t* targets = labels + b * length;
    const auto label_at = [&](int64_t s) -> int64_t {
      const bool real = s >= first && s < first + tokens;
      if (real) return row->label_at(static_cast<size_t>(s - first));
      return options_.supervise_padding ? options_.pad_id : kIgnoredLabel;
    };
    for (int64_t s = 0; s + 1 < length; ++s) targets[s] = label_at(s + 1);
  }
  if ((padding && mask_matters) || options_.always_attention_mask) batch.attention_mask = mask;
  batch.token_count = count * length;
  const auto* all = batch.labels.const_data_ptr<int64_t>();
  batch.target_count =
      batch.labels.numel() - std::count(all, all + batch.labels.numel(), int64_t{kIgnoredLabel});
  return batch;
}

}  // namespace tessera
