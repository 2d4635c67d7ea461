// SPDX-License-Identifier: MIT
#include "backends/common/forward_passes.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>

#include <algorithm>

#include "backends/common/cut_rows.h"
#include "lib/core/autograd_node.h"
#include "lib/core/gradient_columns.h"
#include "lib/core/trace.h"
#include "tessera/core/error.h"

namespace tessera {
namespace {

bool wants_gradient(const at::Tensor& tensor) {
  return tensor.defined() && tensor.requires_grad() && at::isFloatingType(tensor.scalar_type());
}

}  // namespace

// State between forward() and its backward pass.
struct ForwardPasses::Pass {
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
class ForwardPasses::Node final : public torch::autograd::Node {
 public:
  Node(ForwardPasses& passes, std::shared_ptr<Pass> pass)
      : passes_(passes), name_(passes.parts_.strategy), pass_(std::move(pass)) {}
  std::string name() const override { return "TesseraForwardBackward"; }
  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override {
    check(!at::GradMode::is_enabled(), ErrorCode::kInvalidArgument, name_,
          ": backward() through forward() with create_graph: second derivatives do not cross "
          "blocks. Form a gradient penalty inside a block, by torch::autograd::grad in a step of "
          "from_callable()");
    check(pass_ != nullptr, ErrorCode::kInvalidArgument, name_,
          ": a second backward() through what one forward() returned: its blocks have freed what "
          "they kept. Call forward() again");
    const std::shared_ptr<Pass> pass = std::exchange(pass_, nullptr);
    return passes_.backward(*pass, gradients.at(0));
  }
  void release_variables() override { pass_.reset(); }

 private:
  ForwardPasses& passes_;
  const std::string name_;
  std::shared_ptr<Pass> pass_;
};

at::Tensor ForwardPasses::forward(const MicroBatch& micro_batch, const ForwardOptions& options) {
  const TraceRange range("forward pass");
  parts_.enter();
  require_whole_rows(parts_.ranks.context(), parts_.strategy, "forward()");
  check(
      !micro_batch.decode_state.defined(), ErrorCode::kInvalidArgument, parts_.strategy,
      ": forward() takes whole rows; pieces of rows (MicroBatch::decode_state) are for predict()");
  parts_.model.require_packed_rows(micro_batch, parts_.strategy);
  const bool enabled = at::GradMode::is_enabled();
  const bool trains = enabled && options.parameter_gradients &&
                      std::ranges::any_of(parts_.model.trained_units_of_block,
                                          [](const auto& units) { return !units.empty(); });
  if (trains) parts_.agreement.order().require_no_gradient_of_steps();
  const auto pass = std::make_shared<Pass>();
  std::vector<at::Tensor> inputs;
  MicroBatch batch = micro_batch;
  if (enabled) {
    pass->take(batch.input_ids, inputs);
    for (auto& [name, tensor] : batch.extra) pass->take(tensor, inputs);
  }
  const bool differentiable = trains || !inputs.empty();
  const uint64_t step_seed =
      block_seed(parts_.model.seed, static_cast<size_t>(parts_.steps_begun.item<int64_t>()));
  pass->run.context = {
      .seed = block_seed(step_seed, static_cast<size_t>(parts_.ranks.data_rank)),
      .training = options.training,
      .save_norm_outputs = differentiable && parts_.config.saves_norm_outputs(),
      .recompute_experts = differentiable && parts_.config.recomputes_experts(),
      .gradient_columns = differentiable ? std::make_shared<GradientColumns>() : nullptr,
      .data_axis = &parts_.ranks.data,
      .fp8 = options.training ? parts_.config.precision.fp8 : Fp8::kOff,
      .fp8_layers = fp8_layers_of(parts_.config.precision.fp8_layers)};
  if (options.training && parts_.step.codes != nullptr) {
    pass->run.context.fp8_weights =
        std::make_shared<ops::Fp8Weights>(parts_.step.codes, /*keeps=*/false);
  }
  parts_.step.with_gradients = parts_.step.accumulates = false;
  parts_.step.with_scores = parts_.step.is_pass = true;
  parts_.step.pass_kind = (trains ? 1 : 0) + (options.training ? 2 : 0) + 4 * inputs.size();
  parts_.step.micro_batches = {batch};
  parts_.agreement.begin(StepOrder::Call::kForward);
  parts_.agreement.tell();
  pass->run.context.expert_tokens = parts_.agreement.expert_tokens(0);
  if (differentiable) parts_.reserve.make_for(parts_.step.micro_batches);
  if (!options.training) parts_.model.adopt_statistics(parts_.ranks.data);
  pass->weights_version = parts_.weights_version;
  MicroBatchRun& run = pass->run;
  run.micro_batch = std::move(batch);
  run.block_count = parts_.model.blocks.size();
  run.with_gradients = differentiable;
  run.with_scores = true;
  run.input_gradients = !inputs.empty();
  run.parameter_gradients = trains;
  parts_.blocks.forward(run);
  parts_.agreement.check_agreement();
  parts_.step.micro_batches.clear();
  if (options.training) parts_.steps_begun.add_(1);  // the next pass draws other random numbers
  parts_.agreement.end();
  at::Tensor scores = std::exchange(run.hidden, {});
  if (!differentiable) return scores;
  const auto node = make_node<Node>(*this, pass);
  torch::autograd::edge_list edges;
  for (const at::Tensor& input : inputs) {
    edges.push_back(torch::autograd::impl::gradient_edge(input));
  }
  node->set_next_edges(std::move(edges));
  torch::autograd::set_history(scores, node);
  return scores;
}

// Gradients of the inputs that need one.
std::vector<at::Tensor> ForwardPasses::backward(Pass& pass, const at::Tensor& gradient) {
  parts_.enter();
  check(pass.weights_version == parts_.weights_version, ErrorCode::kInvalidArgument,
        parts_.strategy,
        ": weights have changed between forward() and the backward() through what it returned, so "
        "the gradient would be of neither. Call forward() again after optimizer_step(), "
        "state_restored() and copies of weights");
  MicroBatchRun& run = pass.run;
  StepOrder& order = parts_.agreement.order();
  if (run.parameter_gradients) {
    order.require_no_gradient_of_steps();
    const bool adds = order.is_open();
    parts_.agreement.begin(StepOrder::Call::kBackward, adds);
    if (!adds) parts_.scale.begin(/*adds=*/false);
  } else {
    parts_.agreement.begin(StepOrder::Call::kForward);
  }
  run.gradient = gradient.contiguous();
  parts_.blocks.backward(run);
  parts_.agreement.end();
  std::vector<at::Tensor> gradients;
  for (const at::Tensor& leaf : pass.leaves) gradients.push_back(leaf.grad());
  return gradients;
}

void ForwardPasses::close() {
  if (!parts_.agreement.order().is_open()) return;
  const at::NoGradGuard no_grad;
  const Communicator& data = parts_.ranks.data;
  parts_.agreement.begin(StepOrder::Call::kBackward, /*adds=*/true);
  parts_.gradients.complete_all();
  parts_.gradients.finish();
  parts_.replicated.finish();
  parts_.agreement.end();
  parts_.agreement.order().close();
  parts_.scale.set(
      at::full({}, 1.0 / data.size(), at::TensorOptions().dtype(at::kFloat).device(data.device())));
}

}  // namespace tessera
