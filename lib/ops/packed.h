#pragma once
// What operations on packed rows share.
#include <ATen/ATen.h>

#include "tessera/core/error.h"
#include "tessera/core/micro_batch.h"

namespace tessera::ops {

// tokens [batch, sequence, ...] of packed rows. Throws Error(kInvalidArgument).
inline void check_packed(const PackedRows& packed, const at::Tensor& tokens,
                         const at::Tensor& attention_mask) {
  if (!packed.defined()) return;
  check(!attention_mask.defined(), ErrorCode::kInvalidArgument,
        "attention: packed rows take no attention mask");
  check(packed.positions.sizes() == tokens.sizes().slice(0, 2), ErrorCode::kInvalidArgument,
        "attention: rows packed into ", packed.positions.sizes(), " of [batch, sequence], but ",
        tokens.sizes().slice(0, 2), " were given");
}

// Sequences of one length, which one kernel attends to.
struct Stretch {
  int64_t first = 0;  // token, in the flattened ones
  int64_t sequences = 0, length = 0;
};

// Of tokens [batch, sequence, ...]: all of them, but for a last sequence that is shorter.
inline std::vector<Stretch> stretches(const at::Tensor& tokens, const PackedRows& packed) {
  const int64_t batch = tokens.size(0), sequence = tokens.size(1);
  if (!packed.defined() || batch > 1 || sequence <= packed.sequence) return {{0, batch, sequence}};
  const int64_t whole = sequence / packed.sequence, rest = sequence % packed.sequence;
  return {{0, whole, packed.sequence}, {sequence - rest, 1, rest}};
}

// Every row as [1, tokens, ...], views of x [batch, sequence, ...].
inline std::vector<at::Tensor> each_row(const at::Tensor& x, const PackedRows& packed) {
  return x.flatten(0, 1).unsqueeze(0).split_with_sizes(packed.lengths, 1);
}

}  // namespace tessera::ops
