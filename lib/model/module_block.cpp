// SPDX-License-Identifier: MIT
#include "lib/model/module_block.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <set>

#include "lib/core/autograd_node.h"
#include "lib/model/loss_sums.h"
#include "lib/model/module_tensors.h"
#include "lib/model/seeded_generators.h"
#include "tessera/core/error.h"

namespace tessera {
namespace {

struct PassOn final : torch::autograd::Node {
  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override {
    return std::move(gradients);
  }
};

// The leaf as an operation's result, which autograd lets in-place operations change. Shares memory
// and version counter with the leaf, so tensors saved for backward notice changes.
at::Tensor changeable(const at::Tensor& leaf) {
  const auto node = make_node<PassOn>();
  node->set_next_edges(torch::autograd::collect_next_edges(leaf));
  const at::Tensor alias = leaf.detach();
  torch::autograd::set_history(alias, node);
  return alias;
}

// Detects in-place changes of the micro-batch by a user's function.
class RowsUnchanged {
 public:
  explicit RowsUnchanged(const MicroBatch& micro_batch) {
    add("input_ids", micro_batch.input_ids);
    add("labels", micro_batch.labels);
    for (const auto& [name, tensor] : micro_batch.extra) add(name, tensor);
  }
  void check(const std::string& block) const {
    for (const Row& row : rows_) {
      tessera::check(row.tensor._version() == row.version, ErrorCode::kInvalidArgument, "block ",
                     block, ": the micro-batch's \"", row.name,
                     "\" was changed in place, though others read it; change a clone()");
    }
  }

 private:
  struct Row {
    std::string name;
    at::Tensor tensor;
    int64_t version;
  };
  void add(const std::string& name, const at::Tensor& tensor) {
    if (!tensor.defined() || tensor.is_inference()) return;
    rows_.push_back({name, tensor, tensor._version()});
  }
  std::vector<Row> rows_;
};

// Converts a mean, with counters behind it, to a sum.
at::Tensor sum_of_mean(const at::Tensor& sums, const MicroBatch& micro_batch) {
  const int64_t targets = micro_batch.target_count;
  const at::Tensor mean = sums.narrow(0, 0, 1);
  const at::Tensor sum = targets == 0 ? at::zeros_like(mean) : mean * targets;
  return at::cat({sum, sums.narrow(0, 1, sums.numel() - 1)});
}

bool is_running_statistic(const std::string& name) {
  return name == "running_mean" || name == "running_var" || name == "num_batches_tracked";
}

}  // namespace

ModuleBlock::ModuleBlock(ModuleBlockInfo info, detail::CallableModule callable, bool keep_eval,
                         const BuildContext& context)
    : info_(std::move(info)),
      loss_check_(info_.block, info_.options),
      callable_(std::move(callable)),
      device_(context.device),
      traits_(traits_of(*callable_.module)) {
  torch::nn::Module& module = *callable_.module;
  if (device_.is_meta()) {
    give_up_memory(module);
  } else {
    module.to(device_);
  }
  if (keep_eval) {
    for (const auto& part : module.modules()) {
      if (!part->is_training()) kept_in_eval_.push_back(part);
    }
  }
  const at::NoGradGuard no_grad;
  add_parameters(context);
  adapters_ = ModuleAdapters(module, info_.checkpoint_prefix, info_.aliases, info_.index, context);
  parameters_.insert(parameters_.end(), adapters_.parameters().begin(),
                     adapters_.parameters().end());
  add_buffers(context);
}

void ModuleBlock::add_parameters(const BuildContext& context) {
  std::set<const at::TensorImpl*> seen;
  const std::set<const at::TensorImpl*> tables = tables_of(*callable_.module);
  for (auto& [name, tensor] : used_parameters(*callable_.module, *callable_.module)) {
    const bool is_table =
        tables.contains(tensor.unsafeGetTensorImpl()) || info_.tables.contains(name);
    check(tensor.is_floating_point(), ErrorCode::kInvalidArgument, "block ", info_.block,
          ": parameter \"", name, "\" is ", tensor.scalar_type(),
          "; parameters are floating, register constants as buffers");
    check(tensor.scalar_type() != at::kDouble, ErrorCode::kInvalidArgument, "block ", info_.block,
          ": parameter \"", name,
          "\" is in double precision, and weights are trained in fp32: the further digits would be "
          "lost. Convert the module first, module->to(torch::kFloat); where "
          "torch::set_default_dtype() says double, make it under torch::kFloat");
    const bool first = seen.insert(tensor.unsafeGetTensorImpl()).second;
    const bool alias = info_.aliases.contains(name);
    if (alias) {  // memory comes from its owner
      const at::Tensor empty = at::zeros({1}, tensor.options().dtype(at::kFloat));
      const at::Tensor placeholder = empty.expand(tensor.sizes()).detach();
      if (first) {
        tensor.set_data(placeholder);
      } else {
        tensor = placeholder.set_requires_grad(tensor.requires_grad());
      }
    } else if (!first) {
      continue;
    } else {
      if (tensor.scalar_type() != at::kFloat) tensor.set_data(tensor.to(at::kFloat));
      own_memory(tensor);
      if (context.source != nullptr) {
        tensor.copy_(context.source->read(info_.checkpoint_prefix + name, tensor.sizes()));
      }
    }
    parameters_.push_back({name, tensor, tensor.dim() >= 2});
    parameters_.back().fp32_state = is_table;
  }
}

void ModuleBlock::add_buffers(const BuildContext& context) {
  std::set<const at::TensorImpl*> seen;
  for (const auto& part : callable_.module->named_modules()) {
    const bool in_eval =
        std::find(kept_in_eval_.begin(), kept_in_eval_.end(), part.value()) != kept_in_eval_.end();
    for (const auto& item : part.value()->named_buffers(/*recurse=*/false)) {
      at::Tensor tensor = item.value();
      if (!seen.insert(tensor.unsafeGetTensorImpl()).second) continue;
      const std::string name = (part.key().empty() ? "" : part.key() + ".") + item.key();
      const bool statistic = is_running_statistic(item.key()) && !in_eval;
      check(!statistic || info_.options.running_statistics_of_rank.has_value(),
            ErrorCode::kInvalidArgument, "block ", info_.block, ": buffer \"", name,
            "\" is a running statistic, which every data rank computes from its own rows: say "
            "whose is the model's (ModuleOptions{.running_statistics_of_rank = 0}), put the layer "
            "in eval mode to keep it as it is, or use LayerNorm or GroupNorm");
      const auto dtype = tensor.is_floating_point() ? at::kFloat : tensor.scalar_type();
      if (tensor.scalar_type() != dtype || !tensor.is_contiguous()) {
        tensor.set_data(tensor.to(dtype).contiguous());
      }
      own_memory(tensor);
      const std::string stored = info_.checkpoint_prefix + name;
      if (context.source != nullptr && (statistic || context.source->has(stored))) {
        tensor.copy_(context.source->read(stored, tensor.sizes()));
      }
      buffers_.push_back({name, tensor, tensor.detach(), statistic});
    }
  }
}

std::vector<Buffer> ModuleBlock::buffers() {
  std::vector<Buffer> all;
  for (const KeptBuffer& buffer : buffers_) {
    const int rank = buffer.statistic ? *info_.options.running_statistics_of_rank : -1;
    all.push_back({buffer.name, buffer.kept, rank});
  }
  return all;
}

void ModuleBlock::KeptBuffer::give(at::ScalarType dtype) {
  if (!kept.is_floating_point()) return;
  if (dtype == kept.scalar_type()) {
    if (registered.scalar_type() != dtype) registered.set_data(kept);
  } else if (registered.scalar_type() != dtype || version != kept._version()) {
    registered.set_data(kept.to(dtype));
    version = kept._version();
  }
}

void ModuleBlock::give_buffers(bool training) {
  if (parameters_.empty()) return;
  const at::ScalarType dtype = parameters_.front().tensor.scalar_type();
  for (KeptBuffer& buffer : buffers_) {
    check(!buffer.statistic || !training || dtype == at::kFloat, ErrorCode::kInvalidArgument,
          "block ", info_.block, ": running statistic \"", buffer.name,
          "\" would lose its small changes in ", dtype,
          "; train with fp32 parameters, or put the layer in eval mode to keep it as it is");
    buffer.give(dtype);
  }
}

void ModuleBlock::set_mode(bool training) {
  if (mode_ == training) return;
  callable_.module->train(training);
  for (const auto& part : kept_in_eval_) part->eval();
  mode_ = training;
}

// kept: whether the tensor is read again after this pass.
at::Tensor ModuleBlock::input_of(const at::Tensor& given, bool kept) const {
  at::Tensor input = given;
  if (given.is_floating_point() && !parameters_.empty()) {
    input = given.to(parameters_.front().tensor.scalar_type());
  }
  if (!input.is_same(given)) return input;
  if (kept) return traits_.writes_input ? given.clone() : given;
  const bool leaf = at::GradMode::is_enabled() && given.requires_grad() && given.is_leaf();
  return leaf && traits_.writes_input ? changeable(given) : given;
}

void ModuleBlock::check_constants(const std::vector<uint32_t>& versions) const {
  for (size_t i = 0; i < buffers_.size(); ++i) {
    check(buffers_[i].statistic || buffers_[i].registered._version() == versions[i],
          ErrorCode::kInvalidArgument, "block ", info_.block, ": forward() changed the buffer \"",
          buffers_[i].name,
          "\"; buffers are constants, equal on all ranks, but for running_mean, running_var and "
          "num_batches_tracked");
  }
}

// Casts floating inputs to the weights' dtype, and floating labels to fp32.
MicroBatch ModuleBlock::cast(const MicroBatch& micro_batch) const {
  MicroBatch seen = micro_batch;
  const auto to = [](at::Tensor& tensor, at::ScalarType dtype) {
    if (tensor.defined() && tensor.is_floating_point()) tensor = tensor.to(dtype);
  };
  to(seen.labels, at::kFloat);
  if (parameters_.empty()) return seen;
  const at::ScalarType dtype = parameters_.front().tensor.scalar_type();
  to(seen.input_ids, dtype);
  for (auto& [name, tensor] : seen.extra) to(tensor, dtype);
  return seen;
}

void ModuleBlock::run_users(const char* function, const MicroBatch& micro_batch,
                            const BlockContext& context,
                            const std::function<void(const MicroBatch& seen)>& users) {
  set_mode(context.training);
  give_buffers(context.training);
  std::vector<uint32_t> versions;
  std::vector<at::Tensor> statistics;
  for (const KeptBuffer& buffer : buffers_) {
    versions.push_back(buffer.registered._version());
    if (context.will_recompute && buffer.statistic) statistics.push_back(buffer.registered.clone());
  }
  const auto run = [&](const MicroBatch& seen) {
    run_users_code(info_.block, function, device_, [&] { adapters_.call([&] { users(seen); }); });
  };
  if (callable_.sees_micro_batch) {
    const MicroBatch seen = cast(micro_batch);
    const RowsUnchanged rows(seen);
    run(seen);
    rows.check(info_.block);
  } else {
    run(micro_batch);
  }
  check_constants(versions);
  for (size_t i = 0, next = 0; i < buffers_.size() && !statistics.empty(); ++i) {
    // Through data(), as another pass's backward may have saved the tensor.
    if (buffers_[i].statistic) buffers_[i].registered.data().copy_(statistics[next++]);
  }
}

detail::Tensors ModuleBlock::inputs_of(const at::Tensor& hidden, const MicroBatch& micro_batch,
                                       bool will_recompute) {
  if (info_.takes == 0) return {};
  const bool users = !hidden.defined();
  const at::Tensor given = users ? micro_batch.input_ids : hidden;
  check(given.defined(), ErrorCode::kInvalidArgument, "block ", info_.block,
        ": the micro-batch has no input_ids, which the first block takes");
  if (info_.takes == 1) return {input_of(given, users || will_recompute)};
  detail::Tensors inputs;
  for (const at::Tensor& tensor : unpack_(given, micro_batch)) {
    // A view of a tensor that is read again.
    inputs.push_back(input_of(traits_.writes_input ? tensor.clone() : tensor, /*kept=*/false));
  }
  return inputs;
}

at::Tensor ModuleBlock::run_module(const at::Tensor& hidden, const MicroBatch& micro_batch,
                                   const BlockContext& context) {
  const detail::Tensors inputs = inputs_of(hidden, micro_batch, context.will_recompute);
  detail::Tensors outputs;
  run_users("forward()", micro_batch, context,
            [&](const MicroBatch& seen) { outputs = callable_.forward(inputs, seen, context); });
  if (outputs.size() > 1) return pack_(info_.block, outputs);
  at::Tensor& output = outputs.front();
  check(output.defined(), ErrorCode::kInvalidArgument, "block ", info_.block,
        ": forward() returned an undefined tensor");
  const at::Tensor& given = micro_batch.input_ids;
  const bool users = !hidden.defined();
  if (users && given.defined() && output.is_alias_of(given)) output = output.clone();
  return output;
}

bool ModuleBlock::draws(bool training) const {
  return training ? traits_.draws_in_training : traits_.draws_in_evaluation;
}

bool ModuleBlock::gives_divisor() const {
  return callable_.step || (info_.loss && info_.options.reduction == LossReduction::kNone);
}

at::Tensor ModuleBlock::take_step(const MicroBatch& micro_batch, const BlockContext& context) {
  LossResult result;
  run_users("the step", micro_batch, context,
            [&](const MicroBatch& seen) { result = callable_.step(seen, context); });
  const at::Tensor sums =
      loss_sums(info_.block, result, info_.options.reduction, info_.options.counters, micro_batch);
  loss_check_.check(result, micro_batch, [&](const MicroBatch& rows) {
    BlockContext alone = context;
    alone.data_axis = nullptr;  // other ranks do not take part
    alone.training = false;
    LossResult again;
    run_users("the step", rows, alone,
              [&](const MicroBatch& seen) { again = callable_.step(seen, alone); });
    return again.loss;
  });
  return sums;
}

at::Tensor ModuleBlock::forward(const at::Tensor& hidden, const MicroBatch& micro_batch,
                                const BlockContext& context) {
  std::optional<SeededGenerators> seeded;
  if (info_.loss || callable_.step || draws(context.training)) {
    seeded.emplace(device_, block_seed(context.seed, info_.index));
  }
  if (callable_.step) return take_step(micro_batch, context);
  const at::Tensor output = run_module(hidden, micro_batch, context);
  if (!info_.loss) return output;
  const at::Tensor scores = output.to(at::kFloat);
  const auto loss_of = [&](const at::Tensor& of_rows, MicroBatch rows) {
    if (rows.labels.defined() && rows.labels.is_floating_point()) {
      rows.labels = rows.labels.to(at::kFloat);
    }
    at::Tensor loss;
    run_users_code(info_.block, "the loss", [&] { loss = info_.loss(of_rows, rows, context); });
    check(loss.defined(), ErrorCode::kInvalidArgument, "block ", info_.block,
          ": the loss returned an undefined tensor");
    return loss;
  };
  const at::Tensor result = loss_of(scores, micro_batch);
  const ModuleOptions& options = info_.options;
  if (options.reduction == LossReduction::kNone) {
    return loss_sums(info_.block, {.loss = result}, options.reduction, 0, micro_batch);
  }
  loss_check_.check(result, micro_batch, [&](const MicroBatch& twice) {
    return info_.loss(at::cat({scores, scores}), twice, context);
  });
  const at::Tensor sums = result.to(at::kFloat).reshape({-1});
  return options.reduction == LossReduction::kSum ? sums : sum_of_mean(sums, micro_batch);
}

at::Tensor ModuleBlock::give_scores(const MicroBatch& micro_batch, const BlockContext& context) {
  at::Tensor scores;
  run_users("the scores", micro_batch, context,
            [&](const MicroBatch& seen) { scores = callable_.scores(seen, context); });
  check(scores.defined(), ErrorCode::kInvalidArgument, "block ", info_.block,
        ": the function of the scores returned an undefined tensor");
  return scores.is_alias_of(micro_batch.input_ids) ? scores.clone() : scores;
}

at::Tensor ModuleBlock::logits(const at::Tensor& hidden, const MicroBatch& micro_batch,
                               const BlockContext& context) {
  check(
      !callable_.step || callable_.scores, ErrorCode::kInvalidArgument, "block ", info_.block,
      ": a model of from_callable(module, step) gives its loss and no scores; say which by a third "
      "argument, from_callable(module, step, scores), scores(module, micro_batch) -> tensor");
  std::optional<SeededGenerators> seeded;
  if (draws(context.training)) {
    seeded.emplace(device_, block_seed(context.seed, info_.index));
  }
  const at::Tensor output = callable_.scores ? give_scores(micro_batch, context)
                                             : run_module(hidden, micro_batch, context);
  const at::Tensor& positions = micro_batch.head_positions;
  if (!positions.defined()) return output;
  check(output.dim() == 3, ErrorCode::kInvalidArgument, "block ", info_.block,
        ": its output has shape ", output.sizes(),
        "; scores at head_positions need [batch, sequence, n]");
  return output.flatten(0, 1).index_select(0, positions);
}

}  // namespace tessera
