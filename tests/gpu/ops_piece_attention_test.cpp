// SPDX-License-Identifier: MIT
// Attention of pieces of rows on the GPU against whole rows in fp64.
#include "tests/gpu/gpu.h"
#include "tests/unit/ops/piece_cases.h"

using namespace tessera;
using namespace tessera::testing;

namespace {

// Scores of wide heads saturate the softmax of few keys. Gradients of queries and keys are then
// differences of rounded numbers: some units of the dtype, 4e-3 and 5e-4.
void check_all(const PieceCase& a) {
  check_pieces(a, kOnGpu.dtype(at::kBFloat16), 2e-2);
  check_pieces(a, kOnGpu.dtype(at::kHalf), 3e-3);
  check_pieces(a, kOnGpu.dtype(at::kFloat), 1e-5);
}

}  // namespace

TEST_CASE("pieces of a row attend as the whole row on the GPU") {
  TESSERA_NEEDS_GPUS(1);
  at::manual_seed(73);
  for (const auto& [heads, key_heads, d] : {std::tuple{8, 8, 64}, {8, 2, 64}, {4, 1, 128}}) {
    for (const int64_t piece : {1, 33, 64, 200}) {
      for (const int64_t window : {0, 2, 50, 130}) {
        check_all(
            {.piece = piece, .heads = heads, .key_heads = key_heads, .d = d, .window = window});
      }
    }
  }
}

TEST_CASE("pieces of packed rows see their own row only on the GPU") {
  TESSERA_NEEDS_GPUS(1);
  at::manual_seed(74);
  for (const int64_t window : {0, 20}) {
    check_all(
        {.piece = 30, .d = 64, .window = window, .lengths = {100, 1, 19, 30, 60, 2, 1, 1, 26}});
    check_all({.batch = 1, .piece = 64, .d = 128, .window = window, .lengths = {256}});
  }
}

TEST_CASE("pieces of masked rows and of rows with ALiBi on the GPU") {
  TESSERA_NEEDS_GPUS(1);
  at::manual_seed(75);
  at::Tensor mask = at::ones({2, 120}, at::kBool);
  mask.narrow(1, 0, 40).select(0, 1).fill_(false);
  mask.narrow(1, 80, 40).select(0, 0).fill_(false);
  for (const int64_t most : {int64_t{1} << 27, int64_t{20'000}}) {
    check_all({.piece = 30, .d = 64, .attention_mask = mask.cuda(), .most_scores = most});
    check_all({.piece = 30, .key_heads = 4, .d = 64, .alibi = true, .most_scores = most});
  }
}

TEST_CASE("pieces of a row attend with sinks as the whole row on the GPU") {
  TESSERA_NEEDS_GPUS(1);
  at::manual_seed(76);
  for (const auto& [heads, key_heads, d] : {std::tuple{8, 8, 64}, {16, 2, 64}, {4, 1, 128}}) {
    for (const int64_t piece : {1, 33, 200}) {
      for (const int64_t window : {0, 50, 130}) {
        check_all({.piece = piece,
                   .heads = heads,
                   .key_heads = key_heads,
                   .d = d,
                   .window = window,
                   .sinks = true});
      }
    }
  }
  for (const int64_t window : {0, 20}) {
    check_all({.piece = 30,
               .d = 64,
               .window = window,
               .lengths = {100, 1, 19, 30, 60, 2, 1, 1, 26},
               .sinks = true});
  }
}
