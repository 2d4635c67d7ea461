// SPDX-License-Identifier: MIT
#pragma once
// Rows of one batch while the model writes them.
#include <ATen/core/Tensor.h>

#include <memory>
#include <span>
#include <vector>

#include "tessera/core/key_value_cache.h"
#include "tessera/core/micro_batch.h"
#include "tessera/generation/generate.h"

namespace tessera {

// A batch has all its rows from the start to the end; rows without a prompt are ended from the
// start. All decisions about tokens are made on the device, by work that is the same for every
// token behind the first: what it reads and writes stays where it is, also for later prompts.
class RowBatch {
 public:
  struct Shape {
    int64_t rows = 0;
    int64_t capacity = 0;  // tokens of the longest row
    int64_t tokens = 0;    // new ones at most
    at::Device device = at::kCPU;
  };
  using Prompts = std::span<const std::vector<int64_t>>;
  // cache null: every token runs the whole row.
  RowBatch(const Shape& shape, const GenerationOptions& options,
           std::shared_ptr<KeyValueCache> cache);

  // Prompts lie end to end, all together filled up to a multiple of kPackedMultiple. Nothing
  // without a cache.
  static constexpr int64_t kPackedMultiple = 64;
  void pack_prompts() { packs_ = cache_ != nullptr; }
  // Begins with prompts, each filled up to width unless they are packed. places: theirs among all,
  // at most shape.rows.
  void begin(Prompts prompts, std::vector<size_t> places, int64_t width);
  // Whose scores [rows, vocabulary] choose the next token.
  MicroBatch next() const;
  at::Tensor choose(const at::Tensor& scores) const;  // -> int64 [rows]
  void take(const at::Tensor& chosen);                // int64 [rows]
  at::Tensor unfinished() const;                      // int64 scalar: rows that go on
  const std::vector<size_t>& places() const { return places_; }
  // int64 [rows, tokens + 2]: number of tokens, whether an end token is the last, the tokens.
  at::Tensor result() const;

 private:
  void pad(Prompts prompts);
  void pack(Prompts prompts);
  void draw(uint64_t seed);

  Shape shape_;
  std::vector<size_t> places_;
  const GenerationOptions& options_;
  std::shared_ptr<KeyValueCache> cache_;
  int64_t width_ = 0;      // without a cache, of the tokens that next() gives
  bool packs_ = false;     // prompts
  bool begun_ = false;     // rows have a new token
  MicroBatch beginning_;   // of packed prompts
  at::Tensor ids_;         // int64 [rows, width]: prompts; without a cache [rows, capacity], all
  at::Tensor last_;        // int64 [rows]: place of the last token
  at::Tensor limit_;       // int64 [rows]: new tokens at most
  at::Tensor count_;       // int64 [rows]: new tokens so far
  at::Tensor finished_;    // bool [rows]
  at::Tensor at_end_;      // bool [rows]: finished by an end token
  at::Tensor written_;     // int64 [1]: new tokens of the rows that go on
  at::Tensor token_;       // int64 [rows, 1]: the last one
  at::Tensor tokens_;      // int64 [rows, tokens]
  at::Tensor fill_;        // int64 scalar: the token of rows that are finished
  at::Tensor end_tokens_;  // int64 [n]; undefined: none
  at::Tensor uniform_;     // fp64 [tokens, rows]; undefined: greedy
};

}  // namespace tessera
