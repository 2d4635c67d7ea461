// SPDX-License-Identifier: MIT
#include <ATen/ATen.h>

#include <utility>

#include "lib/model/tensor_collectives.h"
#include "lib/models/block_dropout.h"
#include "lib/models/cut_dropout.h"
#include "lib/models/decoder_block.h"
#include "lib/models/decoder_blocks.h"
#include "lib/models/router_path.h"
#include "tessera/core/error.h"
#include "tessera/core/key_value_cache.h"
#include "tessera/model/tensor_parallel.h"
#include "tessera/ops/functional.h"

namespace tessera {
namespace {

// Position i is column i, padded or not, as in transformers.
class DecoderEmbedding final : public DecoderPart {
 public:
  DecoderEmbedding(const DecoderConfig& config, const BuildContext& context, BlockWeights weights)
      : DecoderPart(weights),
        vocabulary_(config.vocabulary),
        epsilon_(config.epsilon),
        probability_(config.embedding_dropout),
        dropout_(context, 0),
        routers_(config, axis_) {
    const DecoderFamily& family = family_of(config);
    if (family.constant_pad) pad_token_ = config.pad_token;
    const double deviation = config.initializer_range;
    tokens_ = weights.normal(table_name(config), {config.vocabulary, config.hidden}, deviation,
                             kVocabularyRows);
    weights.keep_fp32_state();
    weights.add_rows_alone();
    if (config.positions == DecoderConfig::Positions::kLearned) {
      positions_ = weights.normal(family.position_table + ".weight",
                                  {config.max_positions, config.hidden}, deviation);
      weights.keep_fp32_state();
    }
    if (config.embedding_norm) {
      norm_.weight = weights.constant(family.embedding_norm + ".weight", {config.hidden}, 1.0);
      norm_.bias = weights.constant(family.embedding_norm + ".bias", {config.hidden}, 0.0);
    }
    parameters_ = weights.take();
  }
  at::Tensor forward(const at::Tensor&, const MicroBatch& micro_batch,
                     const BlockContext& context) override {
    at::Tensor hidden = vocab_parallel_embedding(micro_batch.input_ids, tokens_, vocabulary_, axis_,
                                                 context.deferred_rows);
    if (pad_token_) hidden = without_padding(hidden, micro_batch.input_ids);
    if (positions_.defined()) hidden = hidden + positions_of(micro_batch, context.cut_rows.get());
    if (norm_.weight.defined()) {
      hidden = ops::layer_norm(hidden, norm_.weight, norm_.bias, epsilon_);
    }
    hidden = dropout_of_cut(
        hidden, dropout_.of(probability_, micro_batch, context, kEmbeddingDropout, hidden.size(-1)),
        context.cut_rows.get());
    return routers_.begin(hidden, micro_batch);
  }

 private:
  // Padding is looked up like any token, but gets no gradient.
  at::Tensor without_padding(const at::Tensor& hidden, const at::Tensor& ids) const {
    at::Tensor real = ids.ne(*pad_token_).unsqueeze(2);
    if (axis_.sequence_parallel()) real = own_tokens(real.to(hidden.scalar_type()), axis_).ne(0);
    return at::where(real, hidden, hidden.detach());
  }
  at::Tensor positions_of(const MicroBatch& micro_batch, const CutRows* cut) const {
    const PackedRows& packed = micro_batch.packed;
    const at::Tensor& ids = micro_batch.input_ids;
    const int64_t length = cut != nullptr ? cut->position_count
                           : micro_batch.decode_state.defined()
                               ? micro_batch.decode_state.cache->capacity()
                           : packed.defined() ? packed.position_count
                                              : ids.size(1);
    check(length <= positions_.size(0), ErrorCode::kInvalidArgument, "a sequence of ", length,
          " tokens, but the model has ", positions_.size(0), " positions");
    at::Tensor places = cut != nullptr ? cut->positions : packed.positions;
    const bool begun = micro_batch.decode_state.begun();
    if (begun) places = micro_batch.decode_state.lengths.unsqueeze(1);
    if (!places.defined()) places = at::arange(ids.size(1), ids.options()).expand_as(ids);
    if (axis_.sequence_parallel()) {
      places = detail::own_rows(places.reshape({-1, 1}), axis_).squeeze(1);
    } else if (cut == nullptr && !packed.defined() && !begun) {
      return positions_.narrow(0, 0, ids.size(1));
    }
    return ops::embedding(places, positions_);
  }

  int64_t vocabulary_;
  double epsilon_, probability_;
  std::optional<int64_t> pad_token_;
  BlockDropout dropout_;
  RouterPath routers_;
  at::Tensor tokens_, positions_;
  NormWeights norm_;
};

}  // namespace

std::unique_ptr<Block> make_embedding(const DecoderConfig& config, const BuildContext& context,
                                      BlockWeights weights) {
  return std::make_unique<DecoderEmbedding>(config, context, std::move(weights));
}

}  // namespace tessera
