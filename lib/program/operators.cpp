// SPDX-License-Identifier: MIT
#include "lib/program/operators.h"

#include <algorithm>
#include <array>
#include <iterator>

#include "lib/program/operator_list.h"

namespace tessera::program {
namespace {

struct NamedTraits {
  std::string_view name;
  OperatorTraits traits;
};

constexpr OperatorTraits kDraws{.draws = true};
constexpr OperatorTraits kDrops{.draws = true, .maybe_same = true};
constexpr OperatorTraits kSized{.sized = true};
constexpr OperatorTraits kDrawsSized{.draws = true, .sized = true};
constexpr OperatorTraits kStatistics{.batch_norm = true};
constexpr OperatorTraits kMaybeSame{.maybe_same = true};
constexpr OperatorTraits kPieces{.pieces = true};
constexpr OperatorTraits kUndeclaredPieces{.maybe_same = true, .pieces = true};
constexpr OperatorTraits kGrouped{.grouped = true};
constexpr OperatorTraits kDivides{.divides = true};

// Operators with traits, sorted.
constexpr NamedTraits kSpecial[] = {
    {"aten._grouped_mm.default", kGrouped},
    {"aten._unsafe_view.default", kMaybeSame},
    {"aten.alpha_dropout.default", kDrops},
    {"aten.arange.default", kSized},
    {"aten.arange.start", kSized},
    {"aten.arange.start_step", kSized},
    {"aten.batch_norm.default", kStatistics},
    {"aten.bernoulli.default", kDraws},
    {"aten.bernoulli.p", kDraws},
    {"aten.bernoulli_.float", kDraws},
    {"aten.broadcast_tensors.default", kMaybeSame},
    {"aten.broadcast_to.default", kSized},
    {"aten.chunk.default", kPieces},
    {"aten.constant_pad_nd.default", kSized},
    {"aten.div.Scalar_mode", kDivides},
    {"aten.div.Tensor_mode", kDivides},
    {"aten.dropout.default", kDrops},
    {"aten.dropout_.default", kDrops},
    {"aten.einsum.default", kMaybeSame},
    {"aten.empty.memory_format", kSized},
    {"aten.expand.default", kSized},
    {"aten.eye.default", kSized},
    {"aten.eye.m", kSized},
    {"aten.feature_alpha_dropout.default", kDrops},
    {"aten.feature_dropout.default", kDrops},
    {"aten.full.default", kSized},
    {"aten.histc.default", kSized},
    {"aten.instance_norm.default", kStatistics},
    {"aten.linspace.default", kSized},
    {"aten.meshgrid.default", kMaybeSame},
    {"aten.meshgrid.indexing", kMaybeSame},
    {"aten.native_dropout.default", kDraws},
    {"aten.new_empty.default", kSized},
    {"aten.new_full.default", kSized},
    {"aten.new_ones.default", kSized},
    {"aten.new_zeros.default", kSized},
    {"aten.normal_.default", kDraws},
    {"aten.one_hot.default", kSized},
    {"aten.ones.default", kSized},
    {"aten.pad.default", kSized},
    {"aten.rand.default", kDrawsSized},
    {"aten.rand_like.default", kDraws},
    {"aten.randint.default", kDrawsSized},
    {"aten.randint.low", kDrawsSized},
    {"aten.randint_like.default", kDraws},
    {"aten.randn.default", kDrawsSized},
    {"aten.randn_like.default", kDraws},
    {"aten.repeat.default", kSized},
    {"aten.repeat_interleave.self_int", kSized},
    {"aten.rrelu.default", kDraws},
    {"aten.scalar_tensor.default", {}},
    {"aten.scaled_dot_product_attention.default", kDraws},
    {"aten.split.Tensor", kPieces},
    {"aten.tensor_split.sections", kPieces},
    {"aten.tile.default", kSized},
    {"aten.tril_indices.default", kSized},
    {"aten.triu_indices.default", kSized},
    {"aten.type_as.default", kMaybeSame},
    {"aten.unbind.int", kPieces},
    {"aten.uniform_.default", kDraws},
    {"aten.unsafe_chunk.default", kUndeclaredPieces},
    {"aten.unsafe_split.Tensor", kUndeclaredPieces},
    {"aten.upsample_bicubic2d.vec", kSized},
    {"aten.upsample_bilinear2d.vec", kSized},
    {"aten.upsample_linear1d.vec", kSized},
    {"aten.upsample_nearest1d.vec", kSized},
    {"aten.upsample_nearest2d.vec", kSized},
    {"aten.upsample_nearest3d.vec", kSized},
    {"aten.upsample_trilinear3d.vec", kSized},
    {"aten.zeros.default", kSized},
    {"transformers.grouped_mm_fallback.default", {}},
};

constexpr std::string_view kSizeFunctions[] = {
    "_operator.add",  "_operator.and_",    "_operator.eq",  "_operator.floordiv",
    "_operator.ge",   "_operator.gt",      "_operator.le",  "_operator.lt",
    "_operator.mod",  "_operator.mul",     "_operator.ne",  "_operator.neg",
    "_operator.not_", "_operator.or_",     "_operator.pos", "_operator.pow",
    "_operator.sub",  "_operator.truediv", "math.ceil",     "math.floor",
    "math.sqrt",      "math.trunc",        "sym_float",     "sym_int",
    "sym_ite",        "sym_max",           "sym_min",       "sym_not",
    "sym_sqrt",       "sym_sum",
};

constexpr std::string_view kDropped[] = {
    "aten._assert_async.msg",
    "aten._assert_scalar.default",
    "aten._assert_tensor_metadata.default",
    "aten.sym_constrain_range.default",
    "aten.sym_constrain_range_for_size.default",
};

template <typename Names>
bool contains(const Names& names, std::string_view name) {
  return std::find(std::begin(names), std::end(names), name) != std::end(names);
}

}  // namespace

const OperatorTraits* find_operator(std::string_view target) {
  static constexpr OperatorTraits kNothing{};
  for (const NamedTraits& special : kSpecial) {
    if (special.name == target) return &special.traits;
  }
  return contains(kPlainOverloads, target) ? &kNothing : nullptr;
}

bool is_size_function(std::string_view target) { return contains(kSizeFunctions, target); }

bool is_dropped(std::string_view target) { return contains(kDropped, target); }

}  // namespace tessera::program
