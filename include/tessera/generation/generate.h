// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Text that a causal model writes, token by token, under any strategy.
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "tessera/backends/strategy.h"
#include "tessera/comm/device_mesh.h"

namespace tessera {

/// Draws the next token, in this order: scores divided by the temperature, of the top_k best (0: of
/// all), of the fewest that have top_p of the probability together (Holtzman et al. 2020). What is
/// drawn depends on the seed, the prompt's place among the prompts and the token's place alone: it
/// is the same on every layout, in every batch, up to rounding.
struct SamplingOptions {
  double temperature = 1.0;  ///< divides the scores; above 0
  int64_t top_k = 0;         ///< best tokens that may be drawn; 0: all
  double top_p = 1.0;        ///< probability that the drawn tokens have together, in (0, 1]; 1: all
  uint64_t seed = 0;         ///< seed of the draws
};

/// What generate() writes.
struct GenerationOptions {
  int64_t max_new_tokens = 20;  ///< a row ends after so many tokens
  /// A row ends behind any of them. Empty is an error, unless rows are to end by their length
  /// alone.
  std::vector<int64_t> end_tokens;
  bool without_end_token = false;  ///< rows end by their length alone
  /// none: the best token, of equal ones the lowest (greedy)
  std::optional<SamplingOptions> sampling;
  /// of prompt and answer together, as the model has them; 0: any number
  int64_t max_positions = 0;
  int64_t vocabulary = 0;  ///< ids of prompts are below it; 0: not checked
  int64_t batch_size = 8;  ///< rows that a rank works on together
  /// any id of the vocabulary: fills prompts up to one length, changes nothing
  int64_t fill_token = 0;
  /// false, or a model with a block that does not go on with rows (Block::continues_rows): every
  /// token runs the whole row again.
  bool use_cache = true;
};

/// Why a row ended.
enum class FinishReason { kEndToken, kLength };

/// What was written behind one prompt.
struct GeneratedRow {
  std::vector<int64_t> ids;                     ///< without the prompt; an end token is the last
  FinishReason finish = FinishReason::kLength;  ///< kLength: max_new_tokens or max_positions
};

/// The rows that the model of an attached strategy writes behind the prompts, in the order of the
/// prompts, on every rank. Collective: every rank of the mesh gives the same prompts and options.
/// Each row is what it is alone, in whatever batch. Prompts are sorted by length, on CPUs padded on
/// the right, and spread over the data ranks; all ranks take part in every token. Parameters stay
/// where the strategy has them. Throws Error(kInvalidArgument), on all ranks and before anything is
/// computed, for options that make no sense, for prompts that are empty, too long, or hold ids
/// outside the vocabulary (with the prompt's place), where ranks were given different ones, and
/// when the strategy or the model's last block gives no scores (Strategy::predict, Head).
std::vector<GeneratedRow> generate(Strategy& strategy, const DeviceMesh& mesh,
                                   std::span<const std::vector<int64_t>> prompts,
                                   const GenerationOptions& options);

/// What generate() holds of rows at a time: each of `batches` that the pipeline's stages work on
/// has this many rows, prompts padded to `width`, and a key/value cache of `capacity` tokens a row.
struct GenerationShape {
  int64_t batches = 1, rows = 0, width = 0, capacity = 0;  ///< numbers of batches, rows and tokens
};
/// Of prompts that are not empty.
GenerationShape generation_shape(const DeviceMesh& mesh,
                                 std::span<const std::vector<int64_t>> prompts,
                                 const GenerationOptions& options);

/// The next token of each row of scores [rows, vocabulary], any floating dtype -> int64 [rows].
at::Tensor best_token(const at::Tensor& scores);
/// uniform: fp64 [rows] in [0, 1), one number a row: the token at which the cumulated probability
/// of the tokens that are left, best first, exceeds it.
at::Tensor sampled_token(const at::Tensor& scores, const at::Tensor& uniform,
                         const SamplingOptions& options);

}  // namespace tessera
