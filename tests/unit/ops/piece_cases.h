// SPDX-License-Identifier: MIT
#pragma once
// Rows in pieces against whole rows, on any device: windows, shared key heads, packed rows, masks.
#include "lib/ops/piece_attention.h"
#include "tessera/ops/attention.h"
#include "tests/unit/ops/gradients.h"

namespace tessera::testing {

struct PieceCase {
  int64_t batch = 2, piece = 3, heads = 4, key_heads = 2, d = 6;
  int64_t window = 0;
  std::vector<int64_t> lengths = {};  // of packed rows
  at::Tensor attention_mask = {};
  bool alibi = false;
  int64_t most_scores = int64_t{1} << 27;
  bool in_two_parts = false;
  bool sinks = false;  // trained ones
};

// Two ranks' pieces, the second rank's first, against the whole rows in fp64.
inline void check_pieces(const PieceCase& a, at::TensorOptions options, double tolerance) {
  INFO("piece " << a.piece << " heads " << a.heads << " of " << a.key_heads << " keys, d " << a.d
                << " window " << a.window << " " << a.lengths.size() << " packed rows");
  const int64_t tokens = 4 * a.piece;
  const auto drawn = [&](int64_t heads) {
    return at::randn({a.batch, tokens, heads, a.d}, at::kDouble).to(options);
  };
  PackedRows packed;
  if (!a.lengths.empty()) packed = make_packed_rows(a.lengths, tokens);
  for (at::Tensor* x : {&packed.offsets, &packed.positions, &packed.first_keys}) {
    if (x->defined()) *x = x->to(options.device());
  }
  const at::Tensor slopes =
      a.alibi ? at::linspace(0.1, 0.8, a.heads, options.dtype(at::kFloat)) : at::Tensor();
  const double scale = 0.4;
  const auto by_pieces = [&](const Tensors& x) {
    const int64_t half = 2 * a.piece;
    return ops::piece_attention(
        at::cat({x[0].narrow(1, a.piece, half), x[0].narrow(1, 0, a.piece),
                 x[0].narrow(1, a.piece + half, a.piece)},
                1),
        at::cat({x[1], x[2]}, 2),
        {{a.piece, a.piece}, {2 * a.piece, a.piece}, {0, a.piece}, {3 * a.piece, a.piece}},
        {.scale = scale,
         .window = a.window,
         .slopes = slopes,
         .packed = packed,
         .attention_mask = a.attention_mask,
         .most_scores = a.most_scores,
         .in_two_parts = a.in_two_parts,
         .sinks = a.sinks ? x[3] : at::Tensor()});
  };
  const auto whole = [&](const Tensors& x) {
    const at::Tensor context = ops::causal_attention(x[0], x[1], x[2], a.attention_mask,
                                                     {.scale = scale,
                                                      .window = a.window,
                                                      .sinks = a.sinks ? x[3] : at::Tensor(),
                                                      .slopes = slopes},
                                                     packed);
    const auto piece = [&](int64_t i) { return context.narrow(1, i * a.piece, a.piece); };
    return at::cat({piece(1), piece(2), piece(0), piece(3)}, 1);
  };
  Tensors inputs{drawn(a.heads), drawn(a.key_heads), drawn(a.key_heads)};
  if (a.sinks) inputs.push_back(at::randn({a.heads}, at::kDouble).to(options));
  check_gradients(inputs, by_pieces, whole, tolerance);
}

}  // namespace tessera::testing
