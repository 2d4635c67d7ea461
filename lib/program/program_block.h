// SPDX-License-Identifier: MIT
#pragma once
// A piece of an exported program as a block.
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lib/model/tensor_pack.h"
#include "lib/program/block_parts.h"
#include "tessera/model/model_spec.h"

namespace tessera::program {

class ProgramBlock final : public Head {
 public:
  ProgramBlock(std::shared_ptr<const BlockParts> parts, const BuildContext& context);

  at::Tensor forward(const at::Tensor& hidden, const MicroBatch& micro_batch,
                     const BlockContext& context) override;
  at::Tensor logits(const at::Tensor& hidden, const MicroBatch& micro_batch,
                    const BlockContext& context) override;
  bool supports_packed_rows() const override;
  bool supports_kv_cache() const override;
  // Tokens meet in attentions alone, whose tables follow no micro-batch's own length.
  bool takes_cut_rows() const override { return supports_kv_cache(); }
  bool defers_gradients(const at::Tensor& hidden, const BlockContext& context) const override;
  bool is_recordable(bool training) const override;
  bool gives_divisor() const override { return parts_->loss == LossKind::kSumCount; }
  std::vector<Parameter> parameters() override { return parameters_; }
  std::vector<Buffer> buffers() override { return buffers_; }

 private:
  // Source of a variant's input: one of these is set.
  struct Binding {
    int64_t parameter = -1, buffer = -1, user = -1, hidden = -1, table = -1;
    at::Tensor constant;
  };
  // A piece with the sources of its inputs.
  struct BoundPiece {
    const BlockPiece* piece = nullptr;
    std::vector<Binding> bindings;
    std::vector<BoundPiece> tables;
    // By table: the longest that was formed, and shorter ones, which recorded work may still read.
    std::vector<std::vector<at::Tensor>> formed;
    std::vector<char> cache_keys;  // RunContext::cache_keys
    std::vector<at::Tensor> kept;  // RunContext::kept
  };

  void add_parameters(const BuildContext& context);
  void add_buffers(const BuildContext& context);
  BoundPiece bind(const BlockVariant& variant, const BlockPiece& piece);
  Binding bind(const BlockVariant& variant, const BlockPiece& piece, const GraphInput& input);
  at::Tensor constant_of(const BlockVariant& variant, const BlockPiece& piece,
                         const GraphInput& input);

  // Index in plan_->variants.
  size_t choose(const at::Tensor& hidden, bool training) const;
  std::vector<at::Tensor> hidden_of(size_t variant, const at::Tensor& hidden,
                                    const MicroBatch& micro_batch);
  at::Tensor buffer_for(const Binding& binding, const Value& value, bool written,
                        const BlockContext& context) const;
  at::Tensor input_of(const BoundPiece& bound, size_t place, const std::vector<at::Tensor>& hidden,
                      const MicroBatch& micro_batch, const BlockContext& context) const;
  // The table for at least so many positions.
  at::Tensor table_of(BoundPiece& bound, size_t table, int64_t positions) const;
  std::vector<at::Tensor> run(BoundPiece& bound, const std::vector<at::Tensor>& hidden,
                              const MicroBatch& micro_batch, const BlockContext& context) const;
  at::Tensor loss_of(size_t variant, const std::vector<at::Tensor>& hidden,
                     const MicroBatch& micro_batch, const BlockContext& context);
  at::Tensor causal_loss(size_t variant, const std::vector<at::Tensor>& hidden,
                         const MicroBatch& micro_batch, const BlockContext& context);
  at::Tensor loss_by_rows(size_t variant, const std::vector<at::Tensor>& hidden,
                          const at::Tensor& labels, const MicroBatch& micro_batch,
                          const BlockContext& context);
  at::Tensor with_auxiliary(const at::Tensor& sum, const at::Tensor& auxiliary,
                            const MicroBatch& micro_batch, const BlockContext& context) const;
  at::Tensor scores_at(size_t variant, const std::vector<at::Tensor>& hidden,
                       const at::Tensor& rows, const MicroBatch& micro_batch,
                       const BlockContext& context);
  at::Tensor loss_of_product(size_t variant, const std::vector<at::Tensor>& hidden,
                             const MicroBatch& micro_batch, const BlockContext& context);
  size_t place_of_rows(size_t variant) const;

  std::shared_ptr<const BlockParts> parts_;
  at::Device device_;
  TensorAxis axis_;
  size_t index_;
  std::vector<Parameter> parameters_;
  std::vector<Buffer> buffers_;
  std::vector<BoundPiece> main_;  // by variant
  std::vector<std::optional<BoundPiece>> auxiliary_, before_product_;
  bool runs_joined_ = false;  // BlockVariant::joined of each
  Packing pack_;
  Unpacking unpack_;
};

}  // namespace tessera::program
