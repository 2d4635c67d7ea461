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
// start. All decisions about tokens are made on the device.
class RowBatch {
 public:
  struct Shape {
    int64_t rows = 0;
    int64_t width = 0;     // of the prompts, filled up
    int64_t capacity = 0;  // tokens of the longest row
    int64_t tokens = 0;    // new ones at most
    at::Device device = at::kCPU;
  };
  // places: of the prompts among all, at most shape.rows. cache null: every token runs the whole
  // row.
  RowBatch(const Shape& shape, std::span<const std::vector<int64_t>> prompts,
           std::vector<size_t> places, const GenerationOptions& options,
           std::shared_ptr<KeyValueCache> cache);

  // Whose scores [rows, vocabulary] choose the next token.
  MicroBatch next() const;
  at::Tensor choose(const at::Tensor& scores) const;  // -> int64 [rows]
  void take(const at::Tensor& chosen);                // int64 [rows]
  at::Tensor unfinished() const;                      // int64 scalar: rows that go on
  const std::vector<size_t>& places() const { return places_; }
  // int64 [rows, tokens + 2]: number of tokens, whether an end token is the last, the tokens.
  at::Tensor result() const;

 private:
  Shape shape_;
  std::vector<size_t> places_;
  const GenerationOptions& options_;
  std::shared_ptr<KeyValueCache> cache_;
  int64_t step_ = 0;
  at::Tensor ids_;         // int64 [rows, capacity]: prompts, and without a cache the new tokens
  at::Tensor prompt_;      // int64 [rows]: length of the prompt
  at::Tensor limit_;       // int64 [rows]: new tokens at most
  at::Tensor count_;       // int64 [rows]: new tokens so far
  at::Tensor finished_;    // bool [rows]
  at::Tensor at_end_;      // bool [rows]: finished by an end token
  at::Tensor tokens_;      // int64 [rows, tokens]
  at::Tensor end_tokens_;  // int64 [n]; undefined: none
  at::Tensor uniform_;     // fp64 [tokens, rows]; undefined: greedy
};

}  // namespace tessera
