// SPDX-License-Identifier: MIT
#include "backends/common/cut_rows.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "lib/model/context_collectives.h"
#include "tessera/core/error.h"
#include "tessera/core/real_tokens.h"
#include "tessera/model/target_weights.h"

namespace tessera {
namespace {

// Extents of whole rows, before and after padding.
struct Extents {
  int64_t batch, sequence, padded;
};

// Packed rows whose last sequence is shorter are [1, tokens]; it is padded, too.
Extents extents_of(const MicroBatch& whole, int64_t ranks) {
  const int64_t pieces = 2 * ranks;
  Extents extents{whole.input_ids.size(0), whole.input_ids.size(1), 0};
  if (whole.packed.defined()) {
    extents.sequence = whole.packed.sequence;
    extents.batch = (whole.input_ids.numel() + extents.sequence - 1) / extents.sequence;
  }
  extents.padded = (extents.sequence + pieces - 1) / pieces * pieces;
  return extents;
}

// [tokens...] -> [batch, padded]
at::Tensor padded(const at::Tensor& tokens, const Extents& to, double value) {
  at::Tensor flat = tokens.reshape({-1});
  const int64_t missing = to.batch * to.sequence - flat.numel();
  if (missing > 0) flat = at::constant_pad_nd(flat, {0, missing}, value);
  const at::Tensor rows = flat.view({to.batch, to.sequence});
  return to.padded == to.sequence ? rows
                                  : at::constant_pad_nd(rows, {0, to.padded - to.sequence}, value);
}

// Padding behind the last row of a sequence becomes rows no longer than the longest, so that it has
// no position that the model may lack.
PackedRows padded(const PackedRows& packed, const Extents& to) {
  std::vector<int64_t> lengths;
  int64_t sequence = 0, used = 0;
  const int64_t longest = packed.longest();
  const auto fill = [&] {
    for (; used < to.padded; used += lengths.back()) {
      lengths.push_back(std::min(longest, to.padded - used));
    }
    used = 0;
    ++sequence;
  };
  for (const int64_t length : packed.lengths) {
    lengths.push_back(length);
    used += length;
    if (used == to.sequence) fill();
  }
  if (used > 0) fill();
  check(sequence == to.batch, ErrorCode::kInternal, "cut rows: ", sequence, " packed sequences of ",
        to.batch);
  return make_packed_rows(std::move(lengths), to.padded);
}

// Pieces r and 2 N - 1 - r of dimension 1.
at::Tensor own_columns(const at::Tensor& rows, const Communicator& axis) {
  const int64_t piece = rows.size(1) / (2 * axis.size());
  const int64_t first = axis.rank(), second = 2 * axis.size() - 1 - first;
  return at::cat({rows.narrow(1, first * piece, piece), rows.narrow(1, second * piece, piece)}, 1);
}

// Whether labels are those of rows, as a classifier has them.
bool labels_rows(const MicroBatch& whole) {
  const at::Tensor& labels = whole.labels;
  if (!labels.defined() || labels.dim() != 1) return false;
  return labels.size(0) ==
         (whole.head_positions.defined() ? whole.head_positions.numel() : whole.input_ids.size(0));
}

// At most `count` of the rank's tokens, all targets among them, without reading how many there are.
at::Tensor targets_first(const at::Tensor& labels, int64_t count) {
  const at::Tensor flat = labels.flatten();
  return flat.eq(kIgnoredLabel)
      .to(at::kInt)
      .argsort(/*stable=*/true, 0, /*descending=*/false)
      .narrow(0, 0, std::min(count, flat.numel()));
}

// Pooled tokens of packed rows: each row keeps its label on the rank that has the token.
void cut_pooled(const MicroBatch& whole, const Extents& extents, const Communicator& axis,
                MicroBatch& own) {
  const int64_t tokens = extents.padded / axis.size();
  const at::Tensor sequence = whole.head_positions.floor_divide(extents.sequence);
  const auto [index, is_own] =
      own_tokens_of(whole.head_positions - sequence * extents.sequence, tokens, place_on(axis));
  own.head_positions = sequence * tokens + index;
  own.labels = whole.labels.masked_fill(is_own.logical_not(), kIgnoredLabel);
}

void require_tokens(const MicroBatch& whole, int ranks) {
  const at::Tensor &ids = whole.input_ids, &labels = whole.labels;
  check(ids.defined() && ids.dim() == 2 && ids.scalar_type() == at::kLong &&
            (!labels.defined() || labels.numel() == ids.numel() || labels_rows(whole)),
        ErrorCode::kInvalidArgument, "a context axis of ", ranks,
        " ranks cuts rows of token ids [batch, sequence] with a label a token or a row, but the "
        "micro-batch has inputs ",
        ids.defined() ? concat(ids.scalar_type(), " ", ids.sizes()) : std::string("undefined"),
        " and labels ", labels.defined() ? concat(labels.sizes()) : std::string("undefined"),
        "; use a context axis of 1 (--context_parallel 1)");
}

}  // namespace

CutMicroBatch cut_rows(const MicroBatch& whole, Communicator& axis, ContextAttention attention) {
  require_tokens(whole, axis.size());
  const Extents to = extents_of(whole, axis.size());
  const auto cut = [&](const at::Tensor& tokens, double value) {
    return tokens.defined() ? own_columns(padded(tokens, to, value), axis) : tokens;
  };
  const auto rows = std::make_shared<CutRows>();
  rows->ranks = &axis;
  rows->attention = attention;
  rows->sequence = to.padded;
  rows->given = to.sequence;
  rows->tokens = whole.input_ids.numel();
  rows->columns =
      own_columns(at::arange(to.padded, whole.input_ids.options()).unsqueeze(0), axis).squeeze(0);
  if (whole.packed.defined()) {
    rows->packed = padded(whole.packed, to);
    const at::Device device = whole.input_ids.device();
    for (at::Tensor* tensor :
         {&rows->packed.offsets, &rows->packed.positions, &rows->packed.first_keys}) {
      *tensor = tensor->to(device, /*non_blocking=*/true);
    }
    rows->positions = own_columns(rows->packed.positions, axis);
    rows->position_count = rows->packed.position_count;
  } else {
    rows->positions = rows->columns.clamp_max(to.sequence - 1).expand({to.batch, -1});
    rows->position_count = to.sequence;
  }
  if (whole.attention_mask.defined()) {
    rows->attention_mask = padded(whole.attention_mask, to, /*value=*/0);
  }
  MicroBatch own = whole;
  own.input_ids = cut(whole.input_ids, 0);
  own.head_positions = at::Tensor();
  if (labels_rows(whole)) {
    if (whole.head_positions.defined()) cut_pooled(whole, to, axis, own);
  } else {
    own.labels = cut(whole.labels, static_cast<double>(kIgnoredLabel));
    if (const auto weights = own.extra.find(kTargetWeights); weights != own.extra.end()) {
      weights->second = cut(weights->second, 0);
    }
    const bool few = whole.head_positions.defined() && own.labels.defined();
    if (few && own.labels.numel() > 0) {
      own.head_positions = targets_first(own.labels, whole.head_positions.numel());
    }
  }
  if (const auto real = own.extra.find(kRealTokens); real != own.extra.end()) {
    real->second = cut(real->second, 0);
  }
  own.attention_mask = at::Tensor();
  own.packed = {};
  return {std::move(own), rows};
}

int64_t cut_token_count(const MicroBatch& whole, const Communicator* axis) {
  if (axis == nullptr || whole.input_ids.dim() != 2) return whole.input_ids.numel();
  const Extents to = extents_of(whole, axis->size());
  return to.batch * to.padded / axis->size();
}

void require_whole_rows(const Communicator* axis, const std::string& strategy, const char* call) {
  check(axis == nullptr, ErrorCode::kInvalidArgument, strategy, ": ", call,
        " returns scores of whole rows, but a context axis of ", axis ? axis->size() : 1,
        " ranks gives each rank a part of them; use a context axis of 1 (--context_parallel 1) to "
        "predict and to generate");
}

}  // namespace tessera
