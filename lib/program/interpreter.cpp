// SPDX-License-Identifier: MIT
#include "lib/program/interpreter.h"

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <new>
#include <utility>

#include "lib/core/failure.h"
#include "lib/program/argument_checks.h"
#include "lib/program/factory_sizes.h"
#include "lib/program/grouped_product.h"
#include "lib/program/size_functions.h"
#include "tessera/core/error.h"
#include "tessera/core/not_copied.h"

namespace tessera::program {
namespace {

using c10::IValue;

// Modes of a region in its scope.
class RegionScope : NotCopied {
 public:
  RegionScope(const Region& region, at::Device device)
      : device_(device.is_meta() ? at::kCPU : device.type()),
        grad_(at::GradMode::is_enabled()),
        enabled_(at::autocast::is_autocast_enabled(device_)),
        dtype_(at::autocast::get_autocast_dtype(device_)) {
    if (region.no_grad) at::GradMode::set_enabled(false);
    if (!region.autocast) return;
    at::autocast::set_autocast_enabled(device_, true);
    at::autocast::set_autocast_dtype(device_, region.autocast_dtype);
  }
  ~RegionScope() {
    at::GradMode::set_enabled(grad_);
    at::autocast::set_autocast_enabled(device_, enabled_);
    at::autocast::set_autocast_dtype(device_, dtype_);
    if (!enabled_) at::autocast::clear_cache();
  }

 private:
  at::DeviceType device_;
  bool grad_, enabled_;
  at::ScalarType dtype_;
};

// Index of the last node that reads each value; for unread values, the one that makes it.
std::vector<size_t> last_uses(const Graph& graph) {
  constexpr size_t kNever = ~size_t{0};
  std::vector<size_t> last(graph.values.size(), kNever);
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    const auto at = [&](ValueId id) { last[static_cast<size_t>(id)] = i; };
    visit_writes(graph.nodes[i], at);
    visit_reads(graph.nodes[i], at);
  }
  for (const ValueId id : graph.outputs) last[static_cast<size_t>(id)] = kNever;
  return last;
}

void keep(const Node& node, std::vector<IValue> results, Values& values) {
  for (size_t i = 0; i < node.outputs.size(); ++i) {
    const Output& output = node.outputs[i];
    const auto set = [&](ValueId id, IValue value) {
      if (id != kNoValue) values[static_cast<size_t>(id)] = std::move(value);
    };
    if (!output.is_list) {
      set(output.values[0], std::move(results[i]));
      continue;
    }
    const c10::List<at::Tensor> list = results[i].toTensorList();
    check(list.size() == output.values.size(), ErrorCode::kInvalidArgument, "it made ", list.size(),
          " tensors, but the program has ", output.values.size());
    for (size_t m = 0; m < list.size(); ++m) set(output.values[m], IValue(list.get(m)));
  }
}

// x, weight, offsets.
at::Tensor grouped_product_of(const std::vector<IValue>& stack) {
  return grouped_product(stack[0].toTensor(), stack[1].toTensor(), stack[2].toTensor());
}

// Arguments of _grouped_mm() that ask for grouped_product() in fp64, in which proofs run and which
// LibTorch has not: without a bias or another dtype of the result.
bool is_plain_in_double(const std::vector<IValue>& stack) {
  const bool plain = std::all_of(stack.begin() + 3, stack.end(),
                                 [](const IValue& argument) { return argument.isNone(); });
  return plain && !stack[2].isNone() && stack[0].toTensor().scalar_type() == at::kDouble;
}

}  // namespace

Interpreter::Interpreter(std::shared_ptr<const Graph> graph) : graph_(std::move(graph)) {
  const std::vector<size_t> last = last_uses(*graph_);
  for (const Node& node : graph_->nodes) {
    steps_.push_back({.node = &node, .call = make_call(*graph_, node)});
    draws_ = draws_ || program::draws(*graph_, node);
  }
  for (size_t id = 0; id < last.size(); ++id) {
    if (last[id] < steps_.size()) steps_[last[id]].last_uses.push_back(static_cast<ValueId>(id));
  }
}

void Interpreter::run_step(const Step& step, Values& values, const RunContext& context) const {
  std::vector<IValue> stack;
  stack.reserve(step.call.arguments.size() + 2);
  for (const ArgumentSource& argument : step.call.arguments)
    argument.push(stack, values, context.device);
  if (step.call.own != nullptr) {
    const OwnOperator& own = *step.call.own;
    if (own.run != nullptr) {
      stack = {own.run(stack, context)};
    } else {
      stack = {own.run_list(stack, context)};
    }
  } else if (step.call.handle) {
    const OperatorTraits& traits = *step.call.traits;
    if (traits.sized) check_elements(*step.call.handle, stack);
    if (traits.pieces) check_pieces(*step.call.handle, stack);
    if (traits.grouped) check_groups(stack);
    if (traits.divides && !context.device.is_meta()) check_division(stack);
    if (context.most_elements > 0) {
      check_results(*step.call.handle, stack, context.most_elements);
    }
    if (traits.grouped && is_plain_in_double(stack)) {
      stack = {grouped_product_of(stack)};
    } else {
      step.call.handle->callBoxed(stack);
    }
  } else if (step.call.traits == nullptr) {
    stack = {evaluate(step.node->target, stack)};
  } else {
    stack = {grouped_product_of(stack)};
  }
  keep(*step.node, std::move(stack), values);
  for (const ValueId id : step.last_uses) values[static_cast<size_t>(id)] = IValue();
}

std::vector<at::Tensor> Interpreter::run(std::vector<at::Tensor> inputs,
                                         const RunContext& context) const {
  const at::Device device = context.device;
  Values values(graph_->values.size());
  for (size_t i = 0; i < graph_->inputs.size(); ++i) {
    values[static_cast<size_t>(graph_->inputs[i].value)] = std::move(inputs[i]);
  }
  inputs.clear();
  for (size_t i = 0; i < steps_.size();) {
    const Region& region = steps_[i].node->region;
    const RegionScope scope(region, device);
    for (; i < steps_.size() && steps_[i].node->region == region; ++i) {
      const Node& node = *steps_[i].node;
      try {
        run_step(steps_[i], values, context);
      } catch (const Error& error) {
        fail(error.code(), place_of(*graph_, node), error.what());
      } catch (c10::Error& error) {
        if (is_out_of_memory(error)) throw;
        if (device.is_meta()) {  // a dry step says that this model has none
          error.add_context("in " + place_of(*graph_, node));
          throw;
        }
        fail(ErrorCode::kInvalidArgument, place_of(*graph_, node), error.what_without_backtrace());
      } catch (const std::bad_alloc&) {
        throw;
      } catch (const std::exception& error) {  // as of lists that are too long
        fail(ErrorCode::kInvalidArgument, place_of(*graph_, node), error.what());
      }
    }
  }
  std::vector<at::Tensor> outputs;
  for (const ValueId id : graph_->outputs) {
    const IValue& value = values[static_cast<size_t>(id)];
    check(value.isTensor(), ErrorCode::kDataLoss, graph_->file, ": result ", outputs.size(),
          " is no tensor");
    outputs.push_back(value.toTensor());
  }
  return outputs;
}

}  // namespace tessera::program
