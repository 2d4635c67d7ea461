// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Micro-batch: the input of one forward pass, made by data loaders and read by blocks.
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace tessera {

class KeyValueCache;

constexpr int64_t kIgnoredLabel = -100;  ///< a label that is no target

/// Packed rows, which lie end to end in sequences. Attention and positions stay inside each row, so
/// its results equal those of the row alone. The micro-batch is [sequences, sequence]; if the last
/// sequence is shorter, [1, tokens].
struct PackedRows {
  /// Tokens of every row, sequence by sequence, rows of padding included. They add up to the tokens
  /// of the micro-batch; no row crosses sequences.
  std::vector<int64_t> lengths;
  int64_t sequence = 0;        ///< tokens of every sequence but the last
  at::Tensor offsets;          ///< int32 [rows + 1]: cumulative lengths, as cu_seqlens
  at::Tensor positions;        ///< int64, the micro-batch's shape: each token's index in its row
  int64_t position_count = 0;  ///< upper bound of positions, exclusive
  /// int32 [sequences, sequence], also with a shorter last sequence: index in the sequence of the
  /// first token of each token's row. Behind the last token: the index itself.
  at::Tensor first_keys;

  bool defined() const { return !lengths.empty(); }  ///< whether rows are packed
  int64_t longest() const;                           ///< tokens of the longest row
};
/// Packing of rows of these lengths into sequences of `sequence` tokens. Throws
/// Error(kInvalidArgument) unless lengths are positive, and for a row that crosses sequences.
PackedRows make_packed_rows(std::vector<int64_t> lengths, int64_t sequence, bool pinned = false);

/// State of rows that the model gets piece by piece, as in generation.
struct DecodeState {
  std::shared_ptr<KeyValueCache> cache;  ///< keys and values of earlier pieces
  /// Decoding: int64 [batch] on the device, tokens of each row before input_ids, which are [batch,
  /// 1]. Undefined (prefill): input_ids begin the rows, padded on the right or packed; later tokens
  /// overwrite the padding in the cache.
  at::Tensor lengths;

  bool defined() const { return cache != nullptr; }  ///< whether rows are given piece by piece
  /// Whether prefill is done.
  bool begun() const { return lengths.defined(); }
};

/// Input of one forward pass on one rank. Tensors live on the rank's device; counts are host
/// values, so no step synchronises to read them.
struct MicroBatch {
  at::Tensor input_ids;  ///< [batch, sequence] int64; for adapted torch modules any first input
  /// Causal language models: [batch, sequence] int64, already shifted: labels[b][s] is the target
  /// of position s, kIgnoredLabel where none is supervised. Classification: [batch] int64.
  at::Tensor labels;
  /// User tensors by name: a second input, other targets, weights of rows. Passed on unchanged;
  /// ranks that share a micro-batch must have equal ones.
  std::map<std::string, at::Tensor> extra;
  /// [batch, sequence] bool, true for real tokens. Undefined when there is no padding, and when
  /// padding changes no supervised number (at the end of rows, under causal attention).
  at::Tensor attention_mask;
  PackedRows packed;  ///< undefined: every sequence is one row; with it there is no attention_mask
  /// int64 [n], indices into the flattened [batch * sequence] tokens for which the head runs: at
  /// least one, all supervised ones included. Undefined: all tokens. Packed classification: the
  /// pooled token of each row (labels are [n]).
  at::Tensor head_positions;
  /// Undefined: whole rows. Otherwise without attention_mask, and every block must support
  /// Block::supports_kv_cache. Only prefill may be packed.
  DecodeState decode_state;
  int64_t sample_count = 0;  ///< real rows, without rows added to fill a batch
  int64_t token_count = 0;   ///< all positions, padding included
  int64_t target_count = 0;  ///< labels that are not kIgnoredLabel

  /// Copies to the device, asynchronously from pinned memory.
  MicroBatch to(at::Device device) const;
  /// The tensor in extra. Throws Error(kInvalidArgument) with the existing names.
  const at::Tensor& get(const std::string& name) const;
};

/// A micro-batch with its counts set. Targets: integral labels other than kIgnoredLabel; for other
/// labels, or none, the rows. For a mean over elements set target_count to labels.numel()
/// afterwards. Tokens: all elements of int64 inputs, else the rows. Reads the labels, so call it
/// before they are copied to a GPU. Throws Error(kInvalidArgument) unless inputs and labels have
/// the same number of rows (dimension 0). extra: see MicroBatch.
MicroBatch make_micro_batch(at::Tensor inputs, at::Tensor labels,
                            std::map<std::string, at::Tensor> extra = {});

/// Sets head_positions of a causal micro-batch on the CPU to the supervised positions. Adds others
/// up to a multiple of `multiple`, which keeps the number of sizes small. Leaves it undefined if
/// less than 1/128 of the tokens would be left out.
void choose_head_positions(MicroBatch& micro_batch, int64_t multiple = 64);

/// Throws Error(kInvalidArgument) for targets with a target_count of 0, which would make the loss a
/// sum instead of a mean. All labels ignored is legal. Reads the labels only if target_count is 0,
/// so other steps do not synchronise.
void check_counts(const MicroBatch& micro_batch);

}  // namespace tessera
