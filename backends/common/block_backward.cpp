// SPDX-License-Identifier: MIT
#include "backends/common/block_backward.h"

#include <ATen/ATen.h>
#include <ATen/ExpandUtils.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/autograd/anomaly_mode.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>

#include "lib/core/autograd_node.h"

namespace tessera {
namespace {

using torch::autograd::Node;

bool has_hooks(Node& node) {
  return !node.pre_hooks().empty() || !node.tensor_pre_hooks().empty() ||
         !node.retains_grad_hooks().empty() || !node.post_hooks().empty();
}

bool is_on_current_stream(Node& node) {
  const auto stream = node.stream();
  return !stream ||
         c10::impl::VirtualGuardImpl(stream->device_type()).getStream(stream->device()) == *stream;
}

// [Note: a block of one node]
// The engine runs a GPU's nodes on its own thread; switching threads for every block costs the host
// as much as some launches. A block whose forward is one autograd node, such as the hand-written
// decoder blocks, is therefore run here. The node must give a gradient only to the block's input.
// Returns the index of that output, or -1.
int64_t only_edge_to(const at::Tensor& input, Node& node) {
  if (node.num_inputs() != 1 || has_hooks(node) || !is_on_current_stream(node)) return -1;
  const auto accumulator = torch::autograd::impl::grad_accumulator(input);
  if (has_hooks(*accumulator) || accumulator->tensor_post_acc_grad_hooks() != nullptr) return -1;
  int64_t found = -1;
  for (uint32_t i = 0; i < node.num_outputs(); ++i) {
    const torch::autograd::Edge& edge = node.next_edge(i);
    if (!edge.is_valid()) continue;
    if (edge.function != accumulator || found >= 0) return -1;
    found = i;
  }
  return found;
}

}  // namespace

at::Tensor block_backward(const at::Tensor& output, const at::Tensor& gradient,
                          const at::Tensor& input) {
  const NodePointer node = output.grad_fn();
  int64_t edge = -1;
  const bool is_leaf = input.defined() && input.requires_grad() && !input.grad().defined();
  if (node != nullptr && is_leaf && gradient.sizes() == output.sizes() &&
      gradient.scalar_type() == output.scalar_type() &&
      !torch::autograd::AnomalyMode::is_enabled()) {
    edge = only_edge_to(input, *node);
  }
  if (edge < 0) {
    torch::autograd::backward({output}, {gradient});
    return input.defined() ? input.grad() : at::Tensor();
  }
  const at::AutoGradMode no_graph(false);
  const auto gradients = (*node)({gradient});
  node->release_variables();
  const at::Tensor& given = gradients[edge];
  return given.defined() ? at::sum_to(given, input.sizes()).to(input.scalar_type()) : given;
}

}  // namespace tessera
