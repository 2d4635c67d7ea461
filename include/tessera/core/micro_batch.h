// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// The input of one forward pass. Data loaders make it, blocks read it; it knows nothing of either.
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace tessera {

class KeyValueCache;

constexpr int64_t kIgnoredLabel = -100;  ///< a target that counts for nothing

/// Rows that lie end to end in sequences. Attention and positions stay inside each row, so that its
/// numbers are those it has alone. All sequences have the same number of tokens, and the
/// micro-batch is [sequences, sequence]; or the last has fewer, and the micro-batch is [1, tokens].
struct PackedRows {
  /// Tokens of every row, sequence by sequence; what fills a sequence up is rows, too. They add up
  /// to the tokens of the micro-batch, and no row continues in the next sequence.
  std::vector<int64_t> lengths;
  int64_t sequence = 0;  ///< tokens of every sequence but the last
  at::Tensor offsets;  ///< int32 [rows + 1]: where each begins in the flattened tokens, and the end
  at::Tensor positions;        ///< int64, as the micro-batch: each token's place in its row
  int64_t position_count = 0;  ///< all of positions are below it
  /// int32 [sequences, sequence], whole also where the last has fewer tokens: its row's first place
  /// in the sequence, its own behind the last token.
  at::Tensor first_keys;

  bool defined() const { return !lengths.empty(); }  ///< whether rows are packed
  int64_t longest() const;                           ///< tokens of the longest row
};
/// Rows of these lengths in sequences of this many tokens. Throws Error(kInvalidArgument) for
/// lengths that are not positive and for a row that continues in the next sequence.
PackedRows make_packed_rows(std::vector<int64_t> lengths, int64_t sequence, bool pinned = false);

/// Rows that are given to the model piece by piece, as generation does.
struct RowsSoFar {
  std::shared_ptr<KeyValueCache> cache;  ///< where blocks keep what they need of the pieces before
  /// int64 [batch] on the device: tokens of each row before input_ids, which are then one token a
  /// row, [batch, 1]. Undefined: input_ids are the rows' beginnings, filled up on the right with
  /// what is overwritten once the row goes on, or packed, and what comes behind the cache's rows.
  at::Tensor lengths;

  bool defined() const { return cache != nullptr; }  ///< whether rows are given piece by piece
  /// Whether the rows' beginnings were given already.
  bool begun() const { return lengths.defined(); }
};

/// All tensors live on the rank's device. The counts are host values, so no step ever asks the
/// device for them.
struct MicroBatch {
  at::Tensor input_ids;  ///< [batch, sequence] int64; for adapted torch modules whatever their
                         ///< first block takes
  /// Causal language models: [batch, sequence] int64, already shifted: labels[b][s] is the target
  /// of position s, kIgnoredLabel where none is supervised. Classification: [batch] int64.
  at::Tensor labels;
  /// Tensors of the user's own by name: a second input, targets of several kinds, weights of rows.
  /// Strategies hand them on; ranks that share a micro-batch must be given equal ones.
  std::map<std::string, at::Tensor> extra;
  /// [batch, sequence] bool, true for real tokens. Undefined when there is no padding, and when
  /// padding changes no supervised number (at the end of rows, under causal attention).
  at::Tensor attention_mask;
  PackedRows packed;  ///< undefined: every sequence is one row; with it there is no attention_mask
  /// int64 [n], places in the flattened [batch * sequence] tokens on which alone the head needs to
  /// run: all supervised ones, perhaps others, at least one. Undefined: all of them. Packed
  /// classification rows: where each label's row is pooled (labels are [n]).
  at::Tensor head_positions;
  /// Undefined: the rows are whole. Else there is no attention_mask, and every block must be one
  /// that can go on with rows (Block::continues_rows). Only beginnings may be packed.
  RowsSoFar so_far;
  int64_t sample_count = 0;  ///< real rows, without rows added to fill a batch
  int64_t token_count = 0;   ///< all positions, padding included
  int64_t target_count = 0;  ///< labels that are not kIgnoredLabel

  MicroBatch to(at::Device device) const;  ///< copies asynchronously from pinned memory
  /// Of extra. Throws Error(kInvalidArgument) with the names that there are.
  const at::Tensor& get(const std::string& name) const;
};

/// A micro-batch with its counts. Targets are, of integral labels, those that are not
/// kIgnoredLabel; else (regression, or no labels) the rows. For a mean over elements set
/// target_count afterwards to labels.numel(). Tokens are all elements of int64 inputs, else the
/// rows. It reads the labels: call it where they are made, before they are copied to a GPU. Throws
/// Error(kInvalidArgument) unless inputs and labels have the same number of rows (dimension 0).
/// extra: see MicroBatch.
MicroBatch make_micro_batch(at::Tensor inputs, at::Tensor labels,
                            std::map<std::string, at::Tensor> extra = {});

/// Sets head_positions of a causal micro-batch on the CPU to the supervised positions, filled up
/// with others to a multiple of `multiple` so that GPUs meet few sizes; leaves it undefined where
/// that would leave out less than one in 128.
void choose_head_positions(MicroBatch& micro_batch, int64_t multiple = 64);

/// Throws Error(kInvalidArgument) when the micro-batch has targets but a target_count of 0, on
/// which a step would train on the sum of the loss instead of its mean. Labels that are all ignored
/// are legal. Reads the labels only where target_count is 0, so that no other step waits for a
/// device.
void check_counts(const MicroBatch& micro_batch);

}  // namespace tessera
