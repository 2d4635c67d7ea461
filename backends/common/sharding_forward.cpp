// SPDX-License-Identifier: MIT
// Strategy::forward(): the model as a differentiable function.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>

#include <algorithm>

#include "backends/common/allocator_reserve.h"
#include "backends/common/attached_model.h"
#include "backends/common/replicated_gradient_reducer.h"
#include "backends/common/step_agreement.h"
#include "lib/core/autograd_node.h"
#include "lib/core/gradient_columns.h"
#include "lib/core/trace.h"
#include "tessera/backends/sharding_strategy.h"
#include "tessera/core/error.h"

namespace tessera {
namespace {

bool wants_gradient(const at::Tensor& tensor) {
  return tensor.defined() && tensor.requires_grad() && at::isFloatingType(tensor.scalar_type());
}

}  // namespace

// State between forward() and its backward pass.
struct ShardingStrategy::ForwardPass {
  MicroBatchRun run;
  std::vector<at::Tensor> leaves;  // replace the inputs that need a gradient
  int64_t weights_version = 0;

  // Replaces an input that needs a gradient by a leaf.
  void take(at::Tensor& input, std::vector<at::Tensor>& given) {
    if (!wants_gradient(input)) return;
    given.push_back(input);
    input = input.detach().set_requires_grad(true);
    leaves.push_back(input);
  }
};

// [Note: backward through forward()]
// Autograd sees the whole model as this node, from inputs to scores, and runs it in the user's
// backward pass. The node runs each block's backward as its own backward pass, as in a step. On a
// GPU that is autograd's thread of the device, while the caller waits: still one thread at a time.
class ShardingStrategy::ForwardNode final : public torch::autograd::Node {
 public:
  ForwardNode(ShardingStrategy& strategy, std::shared_ptr<ForwardPass> pass)
      : strategy_(strategy), name_(strategy.name()), pass_(std::move(pass)) {}
  std::string name() const override { return "TesseraForwardBackward"; }
  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override {
    check(!at::GradMode::is_enabled(), ErrorCode::kInvalidArgument, name_,
          ": backward() through forward() with create_graph: second derivatives do not cross "
          "blocks. Form a gradient penalty inside a block, by torch::autograd::grad in a step of "
          "from_callable()");
    check(pass_ != nullptr, ErrorCode::kInvalidArgument, name_,
          ": a second backward() through what one forward() returned: its blocks have freed what "
          "they kept. Call forward() again");
    const std::shared_ptr<ForwardPass> pass = std::exchange(pass_, nullptr);
    return strategy_.backward_of(*pass, gradients.at(0));
  }
  void release_variables() override { pass_.reset(); }

 private:
  ShardingStrategy& strategy_;
  const std::string name_;
  std::shared_ptr<ForwardPass> pass_;
};

at::Tensor ShardingStrategy::forward(const MicroBatch& micro_batch, const ForwardOptions& options) {
  const TraceRange range("forward pass");
  enter();
  check(
      !micro_batch.decode_state.defined(), ErrorCode::kInvalidArgument, name(),
      ": forward() takes whole rows; pieces of rows (MicroBatch::decode_state) are for predict()");
  model_->require_packed_rows(micro_batch, name());
  const bool enabled = at::GradMode::is_enabled();
  const bool trains = enabled && options.parameter_gradients &&
                      std::ranges::any_of(model_->trained_units_of_block,
                                          [](const auto& units) { return !units.empty(); });
  if (trains) agreement_->order().require_no_gradient_of_steps();
  const auto pass = std::make_shared<ForwardPass>();
  std::vector<at::Tensor> inputs;
  MicroBatch batch = micro_batch;
  if (enabled) {
    pass->take(batch.input_ids, inputs);
    for (auto& [name, tensor] : batch.extra) pass->take(tensor, inputs);
  }
  const bool differentiable = trains || !inputs.empty();
  const uint64_t step_seed =
      block_seed(model_->seed, static_cast<size_t>(steps_begun_.item<int64_t>()));
  pass->run.context = {
      .seed = block_seed(step_seed, static_cast<size_t>(data().rank())),
      .training = options.training,
      .save_norm_outputs = differentiable && config_.saves_norm_outputs(),
      .gradient_columns = differentiable ? std::make_shared<GradientColumns>() : nullptr,
      .data_axis = &data()};
  step_->with_gradients = step_->accumulates = false;
  step_->with_scores = step_->is_pass = true;
  step_->pass_kind = (trains ? 1 : 0) + (options.training ? 2 : 0) + 4 * inputs.size();
  step_->micro_batches = {batch};
  agreement_->begin(StepOrder::Call::kForward);
  agreement_->tell();
  if (differentiable) room_->make_for(step_->micro_batches);
  if (!options.training) model_->adopt_statistics(data());
  pass->weights_version = weights_version_;
  MicroBatchRun& run = pass->run;
  run.micro_batch = std::move(batch);
  run.block_count = block_count();
  run.with_gradients = differentiable;
  run.with_scores = true;
  run.input_gradients = !inputs.empty();
  run.parameter_gradients = trains;
  forward(run);
  agreement_->check_agreement();
  step_->micro_batches.clear();
  if (options.training) steps_begun_.add_(1);  // the next pass draws other random numbers
  agreement_->end();
  at::Tensor scores = std::exchange(run.hidden, {});
  if (!differentiable) return scores;
  const auto node = make_node<ForwardNode>(*this, pass);
  torch::autograd::edge_list edges;
  for (const at::Tensor& input : inputs) {
    edges.push_back(torch::autograd::impl::gradient_edge(input));
  }
  node->set_next_edges(std::move(edges));
  torch::autograd::set_history(scores, node);
  return scores;
}

// Gradients of the inputs that need one.
std::vector<at::Tensor> ShardingStrategy::backward_of(ForwardPass& pass,
                                                      const at::Tensor& gradient) {
  enter();
  check(pass.weights_version == weights_version_, ErrorCode::kInvalidArgument, name(),
        ": weights have changed between forward() and the backward() through what it returned, so "
        "the gradient would be of neither. Call forward() again after optimizer_step(), "
        "state_restored() and copies of weights");
  MicroBatchRun& run = pass.run;
  StepOrder& order = agreement_->order();
  if (run.parameter_gradients) {
    order.require_no_gradient_of_steps();
    const bool adds = order.is_open();
    agreement_->begin(StepOrder::Call::kBackward, adds);
    if (!adds) begin_gradients(/*adds=*/false);
  } else {
    agreement_->begin(StepOrder::Call::kForward);
  }
  run.gradient = gradient.contiguous();
  backward(run);
  agreement_->end();
  std::vector<at::Tensor> gradients;
  for (const at::Tensor& leaf : pass.leaves) gradients.push_back(leaf.grad());
  return gradients;
}

// Reduces the gradients of this step's passes over the ranks. Each rank's loss has weight 1 / data
// ranks.
void ShardingStrategy::close_passes() {
  if (!agreement_->order().is_open()) return;
  const at::NoGradGuard no_grad;
  agreement_->begin(StepOrder::Call::kBackward, /*adds=*/true);
  gradients_->complete_all();
  gradients_->finish();
  replicated_reducer_->finish();
  agreement_->end();
  agreement_->order().close();
  divided_ = at::full({}, 1.0 / data().size(), learning_rate_.options());
  gradient_scale_ = divided_;
}

}  // namespace tessera
