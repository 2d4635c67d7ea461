// SPDX-License-Identifier: MIT
#include "lib/plan/equal_passes.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/functions/utils.h>

#include <bit>
#include <memory>
#include <utility>

#include "backends/common/block_backward.h"
#include "lib/comm/operation_scope.h"
#include "lib/core/autograd_node.h"
#include "lib/core/kept_tensors.h"
#include "lib/model/linear_weights.h"
#include "lib/ops/fp8.h"
#include "tessera/model/cut_rows.h"

namespace tessera {
namespace {

using torch::autograd::variable_list;

at::Tensor bytes_without_memory(int64_t count) {
  return at::empty({count}, at::TensorOptions(at::kByte).device(at::kMeta));
}

// The measured objects of a dry run.
struct Watched {
  StepMemory& memory;
  CommunicationLedger& ledger;
};

// Measures one part of a running pass.
class Watch {
 public:
  explicit Watch(Watched watched)
      : watched_(watched),
        before_(watched.memory.live_bytes()),
        operations_(watched.ledger.operations.size()),
        starts_(watched.ledger.waited.size()) {
    watched_.memory.begin_pass();
  }
  int64_t taken() const { return watched_.memory.live_bytes() - before_; }
  BlockPass::Part end() const {
    BlockPass::Part part{.most = watched_.memory.most_of_pass() - before_};
    const std::vector<LedgerOperation>& operations = watched_.ledger.operations;
    const std::vector<int64_t>& waited = watched_.ledger.waited;
    for (size_t i = operations_; i < operations.size(); ++i) {
      LedgerOperation& each = part.calls.operations.emplace_back(operations[i]);
      each.start -= static_cast<int64_t>(starts_);
      if (each.name == operation_context().label) each.name.clear();
    }
    for (size_t i = starts_; i < waited.size(); ++i) {
      const bool never = waited[i] == CommunicationLedger::kNotWaited;
      part.calls.waited.push_back(never ? waited[i]
                                        : waited[i] - static_cast<int64_t>(operations_));
    }
    return part;
  }

 private:
  const Watched watched_;
  const int64_t before_;
  const size_t operations_, starts_;
};

// Allocates and frees the part's peak bytes, and repeats its operations. Those without a name of
// their own are named by the pass.
void repeat(const BlockPass::Part& part, const Watched& watched) {
  bytes_without_memory(part.most);
  CommunicationLedger& ledger = watched.ledger;
  const auto operations = static_cast<int64_t>(ledger.operations.size());
  const auto starts = static_cast<int64_t>(ledger.waited.size());
  for (LedgerOperation each : part.calls.operations) {
    each.start += starts;
    each.phase = operation_context().phase;
    if (each.name.empty()) each.name = std::string(operation_context().label);
    ledger.operations.push_back(std::move(each));
  }
  for (const int64_t waited : part.calls.waited) {
    const bool never = waited == CommunicationLedger::kNotWaited;
    ledger.waited.push_back(never ? waited : waited + operations);
  }
}

// Backward of a block that ran on a detached leaf in place of its input.
class RunningBackward final : public torch::autograd::Node {
 public:
  RunningBackward(BlockPass& pass, Watched watched, at::Tensor leaf, at::Tensor output)
      : pass_(pass),
        watched_(watched),
        kept_(pass.kept),
        leaf_(std::move(leaf)),
        output_(std::move(output)) {}
  variable_list apply(variable_list&& gradients) override {
    const Watch watch(watched_);
    const at::Tensor &given = gradients.at(0), gradient = block_backward(output_, given, leaf_);
    output_.reset();
    leaf_.reset();
    if (pass_.known || !gradient.defined()) return {gradient};
    pass_.gives_back = gradient.is_alias_of(given);
    pass_.backward = watch.end();
    const int64_t own = pass_.gives_back ? 0 : watched_.memory.bytes_of(gradient);
    pass_.lasting = watch.taken() - own + kept_;
    pass_.kept = kept_ - pass_.lasting;
    pass_.known = pass_.lasting >= 0 && pass_.kept >= 0;
    return {gradient};
  }
  void release_variables() override {
    output_.reset();
    leaf_.reset();
  }

 private:
  BlockPass& pass_;
  const Watched watched_;
  const int64_t kept_;  // bytes, persistent ones included
  at::Tensor leaf_, output_;
};

class RepeatedBackward final : public torch::autograd::Node {
 public:
  RepeatedBackward(const BlockPass& pass, Watched watched, const at::Tensor& input)
      : pass_(pass),
        watched_(watched),
        kept_(bytes_without_memory(pass.kept)),
        sizes_(input.sizes().vec()),
        options_(input.options()) {}
  variable_list apply(variable_list&& gradients) override {
    repeat(pass_.backward, watched_);
    kept_.reset();
    return {pass_.gives_back ? gradients.at(0) : at::empty(sizes_, options_)};
  }
  void release_variables() override { kept_.reset(); }

 private:
  const BlockPass& pass_;
  const Watched watched_;
  at::Tensor kept_;
  std::vector<int64_t> sizes_;
  at::TensorOptions options_;
};

// Base: Block or Head.
template <typename Base>
class EqualBlock : public Base, public LinearWeights {
 public:
  EqualBlock(std::unique_ptr<Block> block, const BlockCost& cost, EqualPasses& passes,
             std::string context, Watched watched)
      : block_(std::move(block)),
        cost_(cost),
        passes_(passes),
        context_(std::move(context)),
        watched_(watched) {}

  at::Tensor forward(const at::Tensor& hidden, const MicroBatch& batch,
                     const BlockContext& context) override {
    const bool is_first = std::exchange(is_first_, false);
    // Copies of weights are made in the first micro-batch, by forward and by backward.
    const bool fits = context.deferred_gradients == nullptr && !batch.decode_state.defined() &&
                      (context.fp8_weights == nullptr || !context.fp8_weights->keeps());
    BlockPass* pass = nullptr;
    if (fits) pass = &passes_.pass_of(context_, key_of(hidden, batch, context, is_first));
    if (pass != nullptr && pass->known) return repeat_forward(*pass, hidden, context);
    if (!std::exchange(has_run_, true) && !is_first) make_tables(hidden, batch, context);
    return pass != nullptr ? run(*pass, hidden, batch, context)
                           : block_->forward(hidden, batch, context);
  }
  bool gives_divisor() const override { return block_->gives_divisor(); }
  bool supports_packed_rows() const override { return block_->supports_packed_rows(); }
  bool takes_cut_rows() const override { return block_->takes_cut_rows(); }
  bool takes_fp8() const override { return block_->takes_fp8(); }
  std::vector<Parameter> parameters() override { return block_->parameters(); }
  std::vector<std::vector<std::string>> linear_weights(const Fp8Layers& of) override {
    return linear_weights_of(*block_, of);
  }
  std::vector<Buffer> buffers() override { return block_->buffers(); }
  bool defers_gradients(const at::Tensor& hidden, const BlockContext& context) const override {
    return block_->defers_gradients(hidden, context);
  }
  bool supports_kv_cache() const override { return block_->supports_kv_cache(); }
  bool is_recordable(bool training) const override { return block_->is_recordable(training); }

 protected:
  Block& block() const { return *block_; }

 private:
  static bool has_backward(const at::Tensor& hidden) {
    return at::GradMode::is_enabled() && hidden.requires_grad();
  }
  std::vector<int64_t> key_of(const at::Tensor& hidden, const MicroBatch& batch,
                              const BlockContext& context, bool is_first) const {
    std::vector<int64_t> key{cost_.parameters,
                             std::bit_cast<int64_t>(cost_.flops_per_token),
                             is_first,
                             at::GradMode::is_enabled(),
                             hidden.requires_grad(),
                             context.training,
                             context.save_norm_outputs,
                             context.recompute_experts,
                             static_cast<int64_t>(context.fp8),
                             context.fp8_layers.qkv,
                             context.fp8_layers.o,
                             context.fp8_layers.up,
                             context.fp8_layers.down,
                             context.will_recompute,
                             context.recomputes,
                             context.kept_tensors != nullptr,
                             context.expert_tokens,
                             batch.attention_mask.defined(),
                             context.gradient_columns != nullptr};
    for (const at::Tensor& tensor : {hidden, batch.input_ids, batch.labels, batch.head_positions}) {
      key.push_back(-1);
      if (tensor.defined()) key.insert(key.end(), tensor.sizes().begin(), tensor.sizes().end());
    }
    const auto add_packed = [&](const PackedRows& packed) {
      key.push_back(packed.sequence);
      key.insert(key.end(), packed.lengths.begin(), packed.lengths.end());
    };
    add_packed(batch.packed);
    if (const CutRows* const cut = context.cut_rows.get(); cut != nullptr) {
      key.insert(key.end(), {cut->sequence, cut->attention_mask.defined()});
      add_packed(cut->packed);
    }
    return key;
  }

  // Runs the block once, uncounted, to make its persistent tables; their bytes were counted when it
  // repeated its first pass.
  void make_tables(const at::Tensor& hidden, const MicroBatch& batch, const BlockContext& context) {
    const at::NoGradGuard no_grad;
    const MetaMemoryCounter apart;
    MicroBatch whole = batch;
    whole.decode_state = {};
    BlockContext alone = context;
    alone.gradient_columns = nullptr;
    alone.kept_tensors = nullptr;
    alone.recomputes = false;
    alone.deferred_gradients = nullptr;
    alone.fp8_weights = nullptr;
    const bool paused = std::exchange(watched_.ledger.paused, true);
    block_->forward(hidden.detach(), whole, alone);
    watched_.ledger.paused = paused;
  }

  at::Tensor run(BlockPass& pass, const at::Tensor& hidden, const MicroBatch& batch,
                 const BlockContext& context) {
    const bool with_backward = has_backward(hidden);
    const at::Tensor leaf = with_backward ? hidden.detach().set_requires_grad(true) : hidden;
    const bool hands = context.kept_tensors != nullptr && context.will_recompute;
    const int64_t taken_over = hands ? 0 : bytes_of(context.kept_tensors.get());
    const Watch watch(watched_);
    const at::Tensor output = block_->forward(leaf, batch, context);
    const bool trains_alone = at::GradMode::is_enabled() && !with_backward;
    if (trains_alone || output.is_alias_of(hidden) || !output.is_contiguous()) return output;
    pass.forward = watch.end();
    pass.shape = output.sizes().vec();
    pass.dtype = output.scalar_type();
    pass.kept = watch.taken() - watched_.memory.bytes_of(output) + taken_over;
    if (hands) {
      pass.handed = forms_of(*context.kept_tensors);
      pass.kept -= bytes_of(context.kept_tensors.get());
    }
    if (!with_backward) {
      pass.lasting = std::exchange(pass.kept, 0);
      pass.known = true;
      return output;
    }
    at::Tensor given = output.detach();
    const auto node = make_node<RunningBackward>(pass, watched_, leaf, output);
    return with_history(std::move(given), hidden, node);
  }

  at::Tensor repeat_forward(const BlockPass& pass, const at::Tensor& hidden,
                            const BlockContext& context) {
    const auto options = hidden.options().dtype(pass.dtype).requires_grad(false);
    repeat(pass.forward, watched_);
    if (context.kept_tensors != nullptr) hand_over(pass, options, context);
    if (pass.lasting > 0) lasting_.push_back(bytes_without_memory(pass.lasting));
    at::Tensor output = at::empty(pass.shape, options);
    if (!has_backward(hidden)) return output;
    return with_history(std::move(output), hidden,
                        make_node<RepeatedBackward>(pass, watched_, hidden));
  }

  int64_t bytes_of(KeptTensors* kept) const {
    int64_t bytes = 0;
    if (kept == nullptr) return bytes;
    for (const at::Tensor* tensor : kept->tensors()) {
      if (tensor->defined()) bytes += watched_.memory.bytes_of(*tensor);
    }
    return bytes;
  }
  static std::vector<std::vector<std::optional<BlockPass::Form>>> forms_of(
      const KeptTensors& kept) {
    std::vector<std::vector<std::optional<BlockPass::Form>>> all;
    for (const KeptTensors::Group& group : kept.groups()) {
      all.emplace_back();
      for (const at::Tensor& x : group) {
        all.back().push_back(x.defined() ? std::optional(BlockPass::Form{
                                               x.sizes().vec(), x.strides().vec(), x.scalar_type()})
                                         : std::nullopt);
      }
    }
    return all;
  }
  // Forward's tensors for its recomputation, or in recomputation their end.
  static void hand_over(const BlockPass& pass, const at::TensorOptions& options,
                        const BlockContext& context) {
    if (!context.will_recompute) return context.kept_tensors->clear();
    for (const auto& group : pass.handed) {
      KeptTensors::Group made;
      for (const auto& form : group) {
        made.push_back(
            form ? at::empty_strided(form->sizes, form->strides, options.dtype(form->dtype))
                 : at::Tensor());
      }
      context.kept_tensors->keep(std::move(made));
    }
  }

  template <typename Pointer>
  static at::Tensor with_history(at::Tensor output, const at::Tensor& hidden, const Pointer& node) {
    torch::autograd::edge_list edges{torch::autograd::impl::gradient_edge(hidden)};
    node->set_next_edges(std::move(edges));
    torch::autograd::set_history(output, node);
    return output;
  }

  const std::unique_ptr<Block> block_;
  const BlockCost cost_;
  EqualPasses& passes_;
  const std::string context_;
  const Watched watched_;
  bool is_first_ = true, has_run_ = false;
  std::vector<at::Tensor> lasting_;
};

class EqualHead final : public EqualBlock<Head> {
 public:
  using EqualBlock::EqualBlock;
  at::Tensor logits(const at::Tensor& hidden, const MicroBatch& batch,
                    const BlockContext& context) override {
    return dynamic_cast<Head&>(block()).logits(hidden, batch, context);
  }
};

}  // namespace

ModelSpec with_equal_passes(ModelSpec model, EqualPasses& passes, const std::string& context,
                            bool with_head, StepMemory& memory, CommunicationLedger& ledger) {
  const Watched watched{memory, ledger};
  for (size_t i = 1; i < model.blocks.size(); ++i) {
    BlockBuilder& builder = model.blocks[i];
    const bool is_last = i + 1 == model.blocks.size();
    if (builder.cost.parameters == 0 || (is_last && !with_head)) continue;
    builder.build = [build = std::move(builder.build), cost = builder.cost, &passes,
                     context = context + (is_last ? " head" : ""),
                     watched](const BuildContext& with) -> std::unique_ptr<Block> {
      auto block = build(with);
      if (dynamic_cast<Head*>(block.get()) != nullptr) {
        return std::make_unique<EqualHead>(std::move(block), cost, passes, context, watched);
      }
      return std::make_unique<EqualBlock<Block>>(std::move(block), cost, passes, context, watched);
    };
  }
  return model;
}

}  // namespace tessera
