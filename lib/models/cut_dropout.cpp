// SPDX-License-Identifier: MIT
#include "lib/models/cut_dropout.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <vector>

#include "lib/model/context_collectives.h"
#include "lib/ops/random.h"
#include "tessera/ops/functional.h"

namespace tessera {
namespace {

// Tokens that are neighbours in the whole rows, too.
struct TokenRun {
  int64_t count;
  int64_t first;  // of the first one, among all tokens of the whole rows without padding
};

// Runs of `count` of the rank's tokens, from number `first` on. Columns of padding, whose numbers
// are those of other tokens, drop anything.
std::vector<TokenRun> token_runs(int64_t first, int64_t count, const CutRows& cut) {
  const auto [rank, ranks] = place_on(*cut.ranks);
  const int64_t piece = cut.sequence / (2 * ranks);
  std::vector<TokenRun> runs;
  for (const int64_t end = first + count; first < end; first += runs.back().count) {
    const int64_t row = first / (2 * piece), column = first % (2 * piece), inside = column % piece;
    const int64_t begin = column < piece ? rank * piece : (2 * ranks - 1 - rank) * piece;
    runs.push_back({std::min(piece - inside, end - first), row * cut.given + begin + inside});
  }
  return runs;
}

}  // namespace

at::Tensor dropout_of_cut(const at::Tensor& x, const ops::Dropout& dropout, const CutRows* cut) {
  if (cut == nullptr || !dropout.on() || x.numel() == 0) return ops::dropout(x, dropout);
  const int64_t width = x.size(-1);
  const at::Tensor tokens = x.reshape({-1, width});
  std::vector<at::Tensor> parts;
  int64_t at = 0;
  for (const TokenRun& run : token_runs(dropout.first / width, tokens.size(0), *cut)) {
    ops::Dropout of_run = dropout;
    of_run.first = run.first * width;
    parts.push_back(ops::dropout(tokens.narrow(0, at, run.count), of_run));
    at += run.count;
  }
  return at::cat(parts).view_as(x);
}

at::Tensor dropout_factors_of_cut(at::IntArrayRef shape, at::ScalarType dtype,
                                  const ops::Dropout& dropout, at::Device device,
                                  const CutRows* cut) {
  if (cut == nullptr) return ops::dropout_factors(shape, dtype, dropout, device);
  const at::Tensor ones = at::ones(shape, at::dtype(dtype).device(device));
  return dropout_of_cut(ones, dropout, cut);
}

}  // namespace tessera
