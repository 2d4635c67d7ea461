// SPDX-License-Identifier: MIT
#include "tessera/data/data_loader.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <random>

#include "lib/data/collate.h"
#include "lib/data/padding_free.h"
#include "tessera/core/error.h"
#include "tessera/data/packing.h"

namespace tessera {
namespace {

void require_positive(int64_t value, const char* name) {
  check(value > 0, ErrorCode::kInvalidArgument, "DataLoader: ", name, " is ", value,
        ", expected at least 1");
}

// As transformers' LengthGroupedSampler: sorts pieces of up to 50 batches by decreasing length. The
// longest row of all comes first, so that running out of memory shows at once.
void group_by_length(std::vector<int64_t>& order, int64_t batch,
                     const std::function<int64_t(int64_t row)>& length_of) {
  const auto count = static_cast<int64_t>(order.size());
  const int64_t piece = batch * std::clamp<int64_t>(count / (4 * batch), 1, 50);
  auto longest = order.begin();
  for (int64_t first = 0; first < count; first += piece) {
    const auto begin = order.begin() + first;
    std::stable_sort(begin, order.begin() + std::min(first + piece, count),
                     [&](int64_t a, int64_t b) { return length_of(a) > length_of(b); });
    if (length_of(*begin) > length_of(*longest)) longest = begin;
  }
  std::iter_swap(order.begin(), longest);
}

}  // namespace

std::vector<int64_t> shuffled_order(int64_t count, uint64_t seed, int64_t epoch) {
  std::vector<int64_t> order(static_cast<size_t>(count));
  std::iota(order.begin(), order.end(), int64_t{0});
  // The standard specifies the output of this generator and std::seed_seq, but not of
  // distributions, hence the own one.
  std::seed_seq sequence{seed, seed >> 32, static_cast<uint64_t>(epoch)};
  std::mt19937_64 random(sequence);
  for (uint64_t left = order.size(); left > 1; --left) {
    const uint64_t fair =
        // A multiple of `left`, so that all indices are equally likely.
        UINT64_MAX - UINT64_MAX % left;
    uint64_t drawn = random();
    while (drawn >= fair) drawn = random();
    std::swap(order[left - 1], order[drawn % left]);
  }
  return order;
}

DataLoader::DataLoader(TokenTable rows, const DataLoaderOptions& options)
    : rows_(std::move(rows)), options_(options) {
  check_options();
  if (options.padding_free)
    padding_free_length_ = padding_free_length(rows_, options.micro_batch_size);
}

void DataLoader::check_options() const {
  const DataLoaderOptions& o = options_;
  require_positive(o.micro_batch_size, "micro_batch_size");
  require_positive(o.accumulation_steps, "accumulation_steps");
  require_positive(o.data_size, "data_size");
  require_positive(o.pad_to_multiple_of, "pad_to_multiple_of");
  check(o.data_rank >= 0 && o.data_rank < o.data_size, ErrorCode::kInvalidArgument,
        "DataLoader: data_rank ", o.data_rank, " is not below data_size ", o.data_size);
  check(rows_.size() > 0, ErrorCode::kInvalidArgument, "DataLoader: the data set has no rows");
  check(o.last_batch == LastBatch::kPad || rows_.size() >= global_batch_size(),
        ErrorCode::kInvalidArgument, "DataLoader: the data set has ", rows_.size(),
        " rows, fewer than one global batch of ", global_batch_size(),
        "; use a smaller batch, or pad the last one");
  check(!o.packing || o.pad_to > 0, ErrorCode::kInvalidArgument,
        "DataLoader: packing needs pad_to, the length of its sequences");
  check(!o.packing ||
            (o.padding_side == PaddingSide::kRight && !o.supervise_padding && o.causal_attention),
        ErrorCode::kInvalidArgument,
        "DataLoader: packed rows have no padding and attend causally; padding_side left, "
        "supervise_padding and attention that is not causal do not go with packing");
  check(!o.padding_free ||
            (!o.packing && o.pad_to == 0 && !o.supervise_padding && o.causal_attention),
        ErrorCode::kInvalidArgument,
        "DataLoader: padding_free leaves padding out and attends causally; packing, pad_to, "
        "supervise_padding and attention that is not causal do not go with it");
  for (int64_t row = 0; o.packing && row < rows_.size(); ++row) {
    check_packable(rows_.row(row), rows_.task(), row);
  }
  const int64_t longest = o.pad_to == 0 ? 0 : rows_.longest();
  check(longest <= o.pad_to, ErrorCode::kInvalidArgument, "DataLoader: a row has ", longest,
        " tokens, more than the length to pad to, ", o.pad_to);
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
  if (order_epoch_ == state_.epoch || (!options_.shuffle && !order_.empty())) return order_;
  if (options_.shuffle) {
    order_ = shuffled_order(rows_.size(), options_.seed, state_.epoch);
  } else {
    order_.resize(static_cast<size_t>(rows_.size()));
    std::iota(order_.begin(), order_.end(), int64_t{0});
  }
  if (options_.group_by_length) {
    group_by_length(order_, global_batch_size(), [&](int64_t row) {
      return static_cast<int64_t>(rows_.row(row).input_ids.size());
    });
  }
  order_epoch_ = state_.epoch;
  return order_;
}

std::vector<MicroBatch> DataLoader::next() {
  if (epoch_finished()) state_ = {state_.epoch + 1, 0};
  std::vector<MicroBatch> batches = options_.packing ? packed_step() : padded_step();
  state_.consumed = std::min(state_.consumed + global_batch_size(), rows_.size());
  return batches;
}

std::vector<MicroBatch> DataLoader::padded_step() {
  const auto& order = this->order();
  int64_t at = state_.consumed +
               options_.micro_batch_size * options_.accumulation_steps * options_.data_rank;
  std::vector<MicroBatch> batches;
  for (int64_t step = 0; step < options_.accumulation_steps; ++step) {
    std::vector<std::optional<TokenRow>> rows;  // nullopt: a padding row
    for (int64_t i = 0; i < options_.micro_batch_size; ++i, ++at) {
      rows.emplace_back();
      if (at < rows_.size()) rows.back() = rows_.row(order[static_cast<size_t>(at)]);
    }
    std::optional<MicroBatch> without_padding;
    if (padding_free_length_ > 0) {
      without_padding = collate_padding_free(rows_.task(), rows, padding_free_length_, options_);
    }
    batches.push_back(without_padding ? std::move(*without_padding)
                                      : collate(rows_.task(), rows, options_));
  }
  return batches;
}

// Every rank packs the rows of all ranks and keeps its share.
std::vector<MicroBatch> DataLoader::packed_step() {
  const auto& order = this->order();
  std::vector<TokenRow> rows;
  std::vector<int64_t> lengths;
  const int64_t end = std::min(state_.consumed + global_batch_size(), rows_.size());
  for (int64_t at = state_.consumed; at < end; ++at) {
    rows.push_back(rows_.row(order[static_cast<size_t>(at)]));
    lengths.push_back(static_cast<int64_t>(rows.back().input_ids.size()));
  }
  const PackingOptions packing{
      .sequence_length = rounded_up(options_.pad_to, options_.pad_to_multiple_of),
      .multiple = options_.pad_to_multiple_of,
      .pad_id = options_.pad_id,
      .pad_token = options_.pad_token,
      .pinned = options_.pinned,
      .mark_padding = options_.mark_padding};
  const auto shares = share_out_rows(lengths, options_.accumulation_steps * options_.data_size,
                                     packing.sequence_length);
  std::vector<MicroBatch> batches;
  for (int64_t step = 0; step < options_.accumulation_steps; ++step) {
    const int64_t place = options_.data_rank * options_.accumulation_steps + step;
    batches.push_back(
        collate_packed(rows_.task(), rows, shares[static_cast<size_t>(place)], packing));
  }
  return batches;
}

}  // namespace tessera
