// SPDX-License-Identifier: MIT
#include <ATen/ATen.h>

#include <utility>

#include "lib/model/context_collectives.h"
#include "lib/models/decoder_blocks.h"
#include "lib/models/router_path.h"
#include "tessera/core/error.h"
#include "tessera/model/cut_rows.h"
#include "tessera/model/target_weights.h"
#include "tessera/model/tensor_parallel.h"
#include "tessera/ops/functional.h"

namespace tessera {
namespace {

constexpr TensorCut kOnAllTokens{.on_all_tokens = true};
constexpr int64_t kChunkRows = 1024;  // of the logits

class HeadBlock : public Head {
 public:
  bool supports_packed_rows() const override { return true; }
  std::vector<Parameter> parameters() override { return parameters_; }
  bool supports_kv_cache() const override { return true; }
  bool is_recordable(bool /*training*/) const override { return true; }

 protected:
  HeadBlock(const DecoderConfig& config, BlockWeights& weights, const TensorCut& norm)
      : axis_(weights.axis()),
        rms_norm_(config.norm == DecoderConfig::Norm::kRms),
        epsilon_(config.epsilon) {
    const std::string& name = family_of(config).final_norm;
    norm_weight_ = weights.constant(name + ".weight", {config.hidden}, 1.0, norm);
    if (rms_norm_) return;
    norm_bias_ = weights.constant(name + ".bias", {config.hidden}, 0.0, norm);
  }
  at::Tensor norm(const at::Tensor& hidden) const {
    return rms_norm_ ? ops::rms_norm(hidden, norm_weight_, epsilon_)
                     : ops::layer_norm(hidden, norm_weight_, norm_bias_, epsilon_);
  }

  TensorAxis axis_;
  at::Tensor weight_;
  std::vector<Parameter> parameters_;

 private:
  bool rms_norm_;
  double epsilon_;
  at::Tensor norm_weight_, norm_bias_;
};

class CausalHead final : public HeadBlock {
 public:
  CausalHead(const DecoderConfig& config, const TensorSource* source, BlockWeights weights)
      : HeadBlock(config, weights, {}), routers_(config, axis_), vocabulary_(config.vocabulary) {
    const std::vector<int64_t> shape = {config.vocabulary, config.hidden};
    if (config.tied_head && source != nullptr) {
      check_tied(*source, checkpoint_name(family_of(config), "embedding", table_name(config)),
                 shape);
    }
    weight_ = config.tied_head ? weights.alias(table_name(config), shape, kVocabularyRows)
                               : weights.normal("lm_head.weight", shape, config.initializer_range,
                                                kVocabularyRows);
    weights.keep_fp32_state();
    parameters_ = weights.take();
  }
  bool takes_cut_rows() const override { return true; }
  bool takes_fp8() const override { return true; }
  at::Tensor forward(const at::Tensor& input, const MicroBatch& micro_batch,
                     const BlockContext& context) override {
    const auto [hidden, sums] = routers_.open(input, micro_batch);
    const at::Tensor loss = vocab_parallel_cross_entropy(norm(hidden), weight_,
                                                         {.labels = micro_batch.labels,
                                                          .positions = micro_batch.head_positions,
                                                          .weights = target_weights(micro_batch),
                                                          .chunk_rows = kChunkRows},
                                                         context.loss_gradient, vocabulary_, axis_)
                                .reshape({1});
    return sums.defined() ? routers_.with_losses(loss, sums, micro_batch, context) : loss;
  }
  at::Tensor logits(const at::Tensor& input, const MicroBatch& micro_batch,
                    const BlockContext&) override {
    const at::Tensor hidden = routers_.open(input, micro_batch).hidden;
    const at::Tensor& positions = micro_batch.head_positions;
    at::Tensor chosen = enter_tensor_ranks(norm(hidden), micro_batch.input_ids.sizes(), axis_);
    if (positions.defined()) chosen = chosen.flatten(0, 1).index_select(0, positions);
    return gather_columns(ops::linear(chosen, weight_, {}), vocabulary_, axis_);
  }

 private:
  // Some directories store the tied head again; a different one would be lost silently, so it is
  // compared.
  static void check_tied(const TensorSource& source, const std::string& table,
                         at::IntArrayRef shape) {
    if (!source.has("lm_head.weight")) return;
    check(at::equal(source.read("lm_head.weight", shape), source.read(table, shape)),
          ErrorCode::kDataLoss, "lm_head.weight differs from ", table,
          ", but config.json ties them; set \"tie_word_embeddings\": false to train both");
  }

  RouterPath routers_;
  int64_t vocabulary_;
};

class ClassificationHead final : public HeadBlock {
 public:
  ClassificationHead(const DecoderConfig& config, int64_t num_labels, BlockWeights weights)
      : HeadBlock(config, weights, kOnAllTokens), pad_token_(config.pad_token) {
    weight_ = weights.optional_normal("score.weight", {num_labels, config.hidden},
                                      config.initializer_range, kOnAllTokens);
    weights.keep_fp32_state();
    parameters_ = weights.take();
  }
  bool takes_cut_rows() const override { return true; }
  at::Tensor forward(const at::Tensor& hidden, const MicroBatch& micro_batch,
                     const BlockContext& context) override {
    const CutRows* const cut = context.cut_rows.get();
    if (cut != nullptr && !micro_batch.head_positions.defined()) {
      const auto [index, own] = own_tokens_of(last_token(whole_rows(micro_batch, *cut)),
                                              micro_batch.input_ids.size(1), place_on(*cut->ranks));
      // The rank that has a row's last token has the row's loss.
      return loss(scores(rows_at(whole_tokens(hidden, micro_batch), index)),
                  micro_batch.labels.masked_fill(own.logical_not(), kIgnoredLabel));
    }
    return loss(logits(hidden, micro_batch, context), micro_batch.labels);
  }
  at::Tensor logits(const at::Tensor& hidden, const MicroBatch& micro_batch,
                    const BlockContext&) override {
    return scores(pooled(whole_tokens(hidden, micro_batch), micro_batch));
  }

 private:
  // Loss sum and correct rows.
  static at::Tensor loss(const at::Tensor& logits, const at::Tensor& labels) {
    const at::Tensor scores = logits.to(at::kFloat);
    const at::Tensor loss =
        at::nll_loss(scores.log_softmax(-1), labels, {}, at::Reduction::Sum, kIgnoredLabel);
    const at::Tensor correct = scores.detach().argmax(-1).eq(labels).sum();
    return at::stack({loss, correct.to(at::kFloat)});
  }
  at::Tensor scores(const at::Tensor& pooled) const {
    return ops::linear(norm(pooled), weight_, {});
  }
  at::Tensor whole_tokens(const at::Tensor& hidden, const MicroBatch& micro_batch) const {
    return axis_.sequence_parallel()
               ? gather_whole_tokens(hidden, micro_batch.input_ids.sizes(), axis_)
               : hidden;
  }
  // Ids and mask of whole rows, as they were given.
  static MicroBatch whole_rows(const MicroBatch& own, const CutRows& cut) {
    MicroBatch whole;
    whole.input_ids =
        gather_row(own.input_ids.unsqueeze(2), *cut.ranks).squeeze(2).narrow(1, 0, cut.given);
    if (cut.attention_mask.defined()) {
      whole.attention_mask = cut.attention_mask.narrow(1, 0, cut.given);
    }
    return whole;
  }
  // hidden [batch, sequence, n], columns [batch] -> [batch, n]
  static at::Tensor rows_at(const at::Tensor& hidden, const at::Tensor& columns) {
    return hidden.gather(1, columns.view({-1, 1, 1}).expand({-1, 1, hidden.size(2)})).squeeze(1);
  }
  // [batch, sequence, n] -> [labels, n]
  at::Tensor pooled(const at::Tensor& hidden, const MicroBatch& micro_batch) const {
    if (micro_batch.head_positions.defined()) {
      return hidden.flatten(0, 1).index_select(0, micro_batch.head_positions);
    }
    return rows_at(hidden, last_token(micro_batch));
  }
  // [batch] int64; 0 for a row of padding only, as in transformers.
  at::Tensor last_token(const MicroBatch& micro_batch) const {
    const at::Tensor& ids = micro_batch.input_ids;
    const at::Tensor positions = at::arange(ids.size(1), ids.options());
    if (pad_token_) return (positions * ids.ne(*pad_token_)).argmax(-1);
    if (micro_batch.attention_mask.defined()) {
      return (positions * micro_batch.attention_mask).argmax(-1);
    }
    return at::full({ids.size(0)}, ids.size(1) - 1, ids.options());
  }

  std::optional<int64_t> pad_token_;
};

}  // namespace

std::unique_ptr<Block> make_causal_head(const DecoderConfig& config, const BuildContext& context,
                                        BlockWeights weights) {
  return std::make_unique<CausalHead>(config, context.source, std::move(weights));
}

std::unique_ptr<Block> make_classification_head(const DecoderConfig& config, int64_t num_labels,
                                                BlockWeights weights) {
  return std::make_unique<ClassificationHead>(config, num_labels, std::move(weights));
}

}  // namespace tessera
