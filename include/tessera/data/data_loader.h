// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Data loader: each optimizer step's micro-batches, with the same rows in the same order under
/// every layout of ranks.
#include <cstdint>
#include <optional>
#include <vector>

#include "tessera/core/micro_batch.h"
#include "tessera/data/token_table.h"

namespace tessera {

/// Treatment of an epoch's last rows that fill no batch.
enum class LastBatch {
  kDrop,
  kPad
};  // kPad: filled with rows without targets, which count for nothing
/// Side of a row that is padded.
enum class PaddingSide { kRight, kLeft };

/// Options of DataLoader.
struct DataLoaderOptions {
  int64_t micro_batch_size = 1;                    ///< rows per rank and micro-batch
  int64_t accumulation_steps = 1;                  ///< micro-batches per rank and optimizer step
  int64_t data_rank = 0;                           ///< coordinate on the data axis
  int64_t data_size = 1;                           ///< extent of the data axis
  bool shuffle = true;                             ///< false: file order
  uint64_t seed = 42;                              ///< seed of every epoch's order
  LastBatch last_batch = LastBatch::kPad;          ///< treatment of an epoch's incomplete batch
  PaddingSide padding_side = PaddingSide::kRight;  ///< side of padding within a micro-batch
  int64_t pad_id = 0;                              ///< token id of padding
  int64_t pad_to = 0;              ///< length of every row; 0: the longest of the micro-batch
  int64_t pad_to_multiple_of = 1;  ///< rounds lengths up
  /// Groups rows of similar length, like transformers' group_by_length. The order then also depends
  /// on the global batch size.
  bool group_by_length = false;
  /// Packs a step's rows end to end into sequences of pad_to tokens (tessera/data/packing.h).
  /// micro_batch_size and global_batch_size() still count rows.
  bool packing = false;
  /// Packs the rows of each micro-batch into sequences of a length that the loader chooses once; a
  /// single sequence may be shorter. Results equal those with padding, and shapes are few.
  /// padding_side is ignored; micro-batches that need their mask are padded.
  bool padding_free = false;
  std::optional<int64_t> pad_token;  ///< see PackingOptions
  /// causal: padding is a target, its label its own id, as when labels = input_ids
  bool supervise_padding = false;
  /// The model attends to no later position, so padding at the end needs no mask.
  bool causal_attention = true;
  bool always_attention_mask = false;  ///< also where it changes no supervised result
  /// Micro-batches with padding say which tokens are real (tessera/core/real_tokens.h).
  bool mark_padding = false;
  bool pinned = false;  ///< in page-locked memory; needs a GPU
};

/// Position in the data, the same on every rank.
struct DataLoaderState {
  int64_t epoch = 0;     ///< index of the epoch, from 0
  int64_t consumed = 0;  ///< rows of this epoch that all ranks together have consumed
  bool operator==(const DataLoaderState&) const = default;  ///< compares both members
};

/// Distributed data loader. Step k of an epoch serves rows k*B .. k*B+B-1 of its order, B =
/// global_batch_size(). Data rank r gets the r-th part of them, split in order into its
/// micro-batches; packed, its share of their tokens. The order depends only on (seed, epoch), so a
/// run resumes on any number of ranks.
class DataLoader {
 public:
  /// Throws Error(kInvalidArgument) for invalid sizes, rows longer than pad_to, and kDrop without a
  /// full batch.
  DataLoader(TokenTable rows, const DataLoaderOptions& options);

  int64_t global_batch_size() const;  ///< rows of an optimizer step over all ranks
  int64_t steps_per_epoch() const;    ///< equal on every rank
  bool epoch_finished() const;        ///< whether no step is left in this epoch
  /// accumulation_steps micro-batches on the CPU; starts the next epoch after the last step of one.
  std::vector<MicroBatch> next();

  /// Position before the next step: a finished epoch is still the current one.
  const DataLoaderState& state() const { return state_; }
  /// Continues from a position. Throws Error(kInvalidArgument) if it cannot belong to this data
  /// set.
  void restore(const DataLoaderState& state);

 private:
  std::vector<MicroBatch> padded_step();
  std::vector<MicroBatch> packed_step();
  void check_options() const;
  const std::vector<int64_t>& order();

  TokenTable rows_;
  DataLoaderOptions options_;
  int64_t padding_free_length_ = 0;  ///< length of the sequences; 0: rows are padded
  DataLoaderState state_;
  std::vector<int64_t> order_;
  int64_t order_epoch_ = -1;
};

/// The rows 0..count-1 in the order of one epoch; equal on every machine.
std::vector<int64_t> shuffled_order(int64_t count, uint64_t seed, int64_t epoch);

}  // namespace tessera
