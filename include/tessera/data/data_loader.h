// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Serves one optimizer step's micro-batches after the other, the same rows in the same order on
/// every layout of ranks.
#include <cstdint>
#include <optional>
#include <vector>

#include "tessera/core/micro_batch.h"
#include "tessera/data/token_table.h"

namespace tessera {

/// What becomes of an epoch's last rows that fill no batch.
enum class LastBatch {
  kDrop,
  kPad
};  // kPad: filled with rows without targets, which count for nothing
/// Which end of a row is filled.
enum class PaddingSide { kRight, kLeft };

/// How rows become micro-batches.
struct DataLoaderOptions {
  int64_t micro_batch_size = 1;            ///< rows per rank and micro-batch
  int64_t accumulation_steps = 1;          ///< micro-batches per rank and optimizer step
  int64_t data_rank = 0;                   ///< place on the data axis
  int64_t data_size = 1;                   ///< its extent
  bool shuffle = true;                     ///< false: file order
  uint64_t seed = 42;                      ///< seed of the order of every epoch
  LastBatch last_batch = LastBatch::kPad;  ///< where an epoch's rows do not divide into batches
  PaddingSide padding_side = PaddingSide::kRight;  ///< where rows of a micro-batch differ in length
  int64_t pad_id = 0;                              ///< the id that rows are filled up with
  int64_t pad_to = 0;              ///< every row's length; 0: the longest of the micro-batch
  int64_t pad_to_multiple_of = 1;  ///< lengths are rounded up to it
  /// Rows of about one length come together, as with transformers' group_by_length: the order is
  /// then a function of the global batch size, too.
  bool group_by_length = false;
  /// A step's rows lie end to end in sequences of pad_to tokens (tessera/data/packing.h);
  /// micro_batch_size and global_batch_size() still count rows.
  bool packing = false;
  /// The rows of a micro-batch lie end to end, too, in sequences of a length that the loader
  /// chooses once (one alone may be shorter), whatever padding_side says: its numbers are those it
  /// has padded, and GPUs meet few shapes. Micro-batches that need their mask are padded.
  bool padding_free = false;
  std::optional<int64_t> pad_token;  ///< see PackingOptions
  /// causal: padding gets its own id as label, as when labels = input_ids
  bool supervise_padding = false;
  /// The model sees no later position, so padding at the end changes nothing before it and needs no
  /// mask.
  bool causal_attention = true;
  bool always_attention_mask = false;  ///< also where it changes no supervised number
  bool pinned = false;                 ///< in page-locked memory; needs a GPU
};

/// A place in the data, the same on every rank.
struct DataLoaderState {
  int64_t epoch = 0;     ///< number of the epoch, from 0
  int64_t consumed = 0;  ///< rows of this epoch that all ranks together have taken
  bool operator==(const DataLoaderState&) const = default;  ///< compares both members
};

/// Step k of an epoch takes rows k*B .. k*B+B-1 of the epoch's order, B = global_batch_size(); the
/// rank with coordinate r takes the r-th part of them, its micro-batches in order; packed, its
/// share of their tokens. The order is a function of (seed, epoch) only, so a run continues from
/// its state at any number of ranks.
class DataLoader {
 public:
  /// Throws Error(kInvalidArgument) for sizes that make no sense, rows longer than pad_to, or no
  /// full batch with kDrop.
  DataLoader(TokenTable rows, const DataLoaderOptions& options);

  int64_t global_batch_size() const;  ///< rows of an optimizer step over all ranks
  int64_t steps_per_epoch() const;    ///< the same on every rank
  bool epoch_finished() const;        ///< no step is left in this epoch
  /// accumulation_steps micro-batches on the CPU; starts the next epoch when this one is finished.
  std::vector<MicroBatch> next();

  /// Before the next step: an epoch that is finished is still the current one.
  const DataLoaderState& state() const { return state_; }
  /// Error(kInvalidArgument) when it cannot be of this data set
  void restore(const DataLoaderState& state);

 private:
  std::vector<MicroBatch> padded_step();
  std::vector<MicroBatch> packed_step();
  void check_options() const;
  const std::vector<int64_t>& order();

  TokenTable rows_;
  DataLoaderOptions options_;
  int64_t padding_free_length_ = 0;  ///< of the sequences; 0: rows are padded
  DataLoaderState state_;
  std::vector<int64_t> order_;
  int64_t order_epoch_ = -1;
};

/// The rows 0..count-1 in the order of one epoch; equal on every machine.
std::vector<int64_t> shuffled_order(int64_t count, uint64_t seed, int64_t epoch);

}  // namespace tessera
