// SPDX-License-Identifier: MIT
// What a strategy requires of the model that it was given.
#include <algorithm>

#include "backends/common/attached_model.h"
#include "tessera/core/error.h"

namespace tessera {

void AttachedModel::require_packed_rows(const MicroBatch& micro_batch,
                                        const std::string& strategy) const {
  check(!micro_batch.packed.defined() || refuses_packed.empty(), ErrorCode::kInvalidArgument,
        strategy, ": block ", refuses_packed,
        " was given packed rows, but does not say that it keeps to them. Let "
        "Block::supports_packed_rows() (ModuleOptions::supports_packed_rows of an adapted module) "
        "return true if it looks at no other position or only at those of the same row "
        "(MicroBatch::packed); else train without packing and padding_free");
}

void AttachedModel::require_cut_rows(int ranks, const std::string& strategy) const {
  for (size_t i = 0; i < blocks.size(); ++i) {
    check(blocks[i]->takes_cut_rows(), ErrorCode::kInvalidArgument, strategy, ": block ", names[i],
          " of a model on a context axis of ", ranks,
          " ranks does not say that it takes a part of every row (Block::takes_cut_rows). The "
          "decoders of LanguageModel::make_causal() do; train others with a context axis of 1 "
          "(--context_parallel 1)");
  }
}

void AttachedModel::require_fp8(const std::string& strategy) const {
  const auto takes = [](const auto& block) { return block->takes_fp8(); };
  check(std::ranges::any_of(blocks, takes), ErrorCode::kInvalidArgument, strategy,
        ": fp8 asks for products in 8 bits, and no block of the model has them "
        "(Block::takes_fp8). The decoders of LanguageModel do; train others with fp8 off "
        "(--fp8 off)");
}

void AttachedModel::require_codes(const std::string& strategy) const {
  check(has_codes, ErrorCode::kInvalidArgument, strategy,
        ": frozen_dtype fp8 stores frozen linear layers of decoder blocks in 8 bits, and the model "
        "has none: its layers are trained, or of another kind. Train adapters of a decoder of "
        "LanguageModel (--lora_r), or leave frozen weights in the compute dtype "
        "(--frozen_dtype same)");
}

void AttachedModel::require_trained(const std::string& strategy) const {
  check(is_trained, ErrorCode::kInvalidArgument, strategy, ": a step would train nothing: ",
        parameter_count == 0
            ? "no module of the model has registered a parameter. Register them "
              "(register_parameter, register_module); of a TorchScript module, a "
              "torch::jit::Module, register each of its parameters() under a name of your own"
            : "no parameter of the model requires a gradient. Call set_requires_grad(true) on what "
              "is to be trained, or evaluate() and predict() alone");
}

}  // namespace tessera
