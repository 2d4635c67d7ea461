// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Generation: text of a causal model, token by token, under any strategy.
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "tessera/backends/strategy.h"
#include "tessera/comm/device_mesh.h"

namespace tessera {

/// Sampling of the next token: temperature, then top-k (0: all), then top-p (Holtzman et al. 2020).
/// Draws depend only on the seed, the prompt's index and the token's index: they are the same under
/// every layout and in every batch, up to rounding.
struct SamplingOptions {
  double temperature = 1.0;  ///< divides the scores; above 0
  int64_t top_k = 0;         ///< number of best tokens kept; 0: all
  double top_p = 1.0;        ///< probability mass of the tokens kept, in (0, 1]; 1: all
  uint64_t seed = 0;         ///< seed of the draws
};

/// Options of generate().
struct GenerationOptions {
  int64_t max_new_tokens = 20;  ///< most tokens generated per row
  /// A row ends after any of them. Empty is an error without without_end_token.
  std::vector<int64_t> end_tokens;
  bool without_end_token = false;  ///< rows end only by length
  /// Sampling; none: greedy, the lowest of equally good tokens.
  std::optional<SamplingOptions> sampling;
  /// Most tokens of prompt and answer together, a limit of the model; 0: none.
  int64_t max_positions = 0;
  int64_t vocabulary = 0;  ///< upper bound of prompt ids, exclusive; 0: not checked
  int64_t batch_size = 8;  ///< rows per rank and batch
  /// Any id of the vocabulary: pads prompts, without effect on results.
  int64_t fill_token = 0;
  /// Key/value cache. false, or a model with a block without Block::supports_kv_cache: every token
  /// runs the whole row again.
  bool use_cache = true;
};

/// Reason why a row ended.
enum class FinishReason { kEndToken, kLength };

/// Generated continuation of one prompt.
struct GeneratedRow {
  std::vector<int64_t> ids;                     ///< without the prompt; an end token comes last
  FinishReason finish = FinishReason::kLength;  ///< kLength: max_new_tokens or max_positions
};

/// Continuations of the prompts by an attached strategy's model, in the prompts' order, on every
/// rank. Collective: every rank of the mesh passes the same prompts and options. A row's result
/// does not depend on its batch. Prompts are sorted by length, padded on the right on CPUs, and
/// divided over the data ranks; all ranks take part in every token. Parameters stay sharded. Throws
/// Error(kInvalidArgument) on all ranks, before any computation: invalid options; prompts that are
/// empty, too long, outside the vocabulary (with the prompt's index) or different between ranks; a
/// strategy or last block without scores (Strategy::predict, Head).
std::vector<GeneratedRow> generate(Strategy& strategy, const DeviceMesh& mesh,
                                   std::span<const std::vector<int64_t>> prompts,
                                   const GenerationOptions& options);

/// Sizes in generate(): number of batches in the pipeline at once, rows per batch, prompt length
/// after padding (width), and key/value cache tokens per row (capacity).
struct GenerationShape {
  int64_t batches = 1, rows = 0, width = 0, capacity = 0;  ///< sizes as described
};
/// The sizes for these prompts, none of them empty.
GenerationShape generation_shape(const DeviceMesh& mesh,
                                 std::span<const std::vector<int64_t>> prompts,
                                 const GenerationOptions& options);

/// Greedy choice: scores [rows, vocabulary], any floating dtype -> int64 [rows].
at::Tensor best_token(const at::Tensor& scores);
/// Sampled choice: the token at which the cumulative probability of the kept tokens, best first,
/// exceeds the row's number. uniform: fp64 [rows] in [0, 1).
at::Tensor sampled_token(const at::Tensor& scores, const at::Tensor& uniform,
                         const SamplingOptions& options);

}  // namespace tessera
