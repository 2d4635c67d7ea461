// SPDX-License-Identifier: MIT
#pragma once
// Decoding state of one batch of rows.
#include <ATen/core/Tensor.h>

#include <memory>
#include <span>
#include <vector>

#include "tessera/core/key_value_cache.h"
#include "tessera/core/micro_batch.h"
#include "tessera/generation/generate.h"

namespace tessera {

// The number of rows is fixed; rows without a prompt are finished from the start. All decisions
// about tokens are made on the device, by work that is equal for every token after the first: its
// inputs and outputs keep their addresses, also for later prompts.
class RowBatch {
 public:
  struct Shape {
    int64_t rows = 0;
    int64_t capacity = 0;  // tokens of the longest row
    int64_t tokens = 0;    // limit of new tokens
    at::Device device = at::kCPU;
  };
  using Prompts = std::span<const std::vector<int64_t>>;
  // cache null: every token recomputes the whole row.
  RowBatch(const Shape& shape, const GenerationOptions& options,
           std::shared_ptr<KeyValueCache> cache);

  // Packs the prompts, padded together to a multiple of kPackedMultiple. No effect without a cache.
  static constexpr int64_t kPackedMultiple = 64;
  void pack_prompts() { packs_ = cache_ != nullptr; }
  // Starts with prompts, each padded to width unless packed. places: their indices among all
  // prompts, at most shape.rows.
  void begin(Prompts prompts, std::vector<size_t> places, int64_t width);
  // The next micro-batch; its scores [rows, vocabulary] choose the next token.
  MicroBatch next() const;
  at::Tensor choose(const at::Tensor& scores) const;  // returns int64 [rows]
  void take(const at::Tensor& chosen);                // int64 [rows]
  at::Tensor unfinished() const;                      // int64 scalar: number of unfinished rows
  const std::vector<size_t>& places() const { return places_; }
  // int64 [rows, tokens + 2]: number of tokens, whether the last is an end token, the tokens.
  at::Tensor result() const;

 private:
  void pad(Prompts prompts);
  void pack(Prompts prompts);
  void draw(uint64_t seed);

  Shape shape_;
  std::vector<size_t> places_;
  const GenerationOptions& options_;
  std::shared_ptr<KeyValueCache> cache_;
  int64_t width_ = 0;     // without a cache: tokens per row of next()
  bool packs_ = false;    // whether prompts are packed
  bool begun_ = false;    // every row has a new token
  MicroBatch beginning_;  // of packed prompts
  at::Tensor ids_;    // int64 [rows, width]: prompts; without a cache all tokens, [rows, capacity]
  at::Tensor last_;   // int64 [rows]: position of the last token
  at::Tensor limit_;  // int64 [rows]: limit of new tokens
  at::Tensor count_;  // int64 [rows]: new tokens so far
  at::Tensor finished_;    // bool [rows]
  at::Tensor at_end_;      // bool [rows]: finished by an end token
  at::Tensor written_;     // int64 [1]: new tokens of unfinished rows
  at::Tensor token_;       // int64 [rows, 1]: last token
  at::Tensor tokens_;      // int64 [rows, tokens]
  at::Tensor fill_;        // int64 scalar: token for finished rows
  at::Tensor end_tokens_;  // int64 [n]; undefined: none
  at::Tensor uniform_;     // fp64 [tokens, rows]; undefined: greedy
};

}  // namespace tessera
