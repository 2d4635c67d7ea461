#pragma once
// Makes any torch::nn module a model that every strategy can train.
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <utility>

#include "tessera/model/model_spec.h"

namespace torch::nn {
class Module;
class SequentialImpl;
}  // namespace torch::nn

namespace tessera {

// (output of the module in fp32, micro-batch) -> SUM of the loss over the micro-batch's targets: a
// scalar, or with ModuleOptions::counters a 1-D tensor whose further elements are counters as Block
// describes them. Divide by nothing: strategies divide by the sum of MicroBatch::target_count.
// Error(kInvalidArgument) refuses, where it can be told, what is no such sum:
//   any other shape;
//   a mean, which stays the same when every row is there twice. A loss that is divided by something
//   is called once more to find out, without gradients. One that is of a whole micro-batch has one
//   target: set target_count to 1;
//   LibTorch's class weights, by whose sum it divides;
//   mse_loss and its kin over several numbers a row where the rows are counted as targets.
using LossFunction = std::function<at::Tensor(const at::Tensor& output, const MicroBatch&)>;

struct ModuleOptions {
  // Every data rank computes running statistics (of BatchNorm, InstanceNorm) from its own rows: the
  // rank whose values are the model's. Without it modules that have them are refused.
  std::optional<int> running_statistics_of_rank = std::nullopt;
  // No module looks at any position but its own, so that several rows may lie in a sequence
  // (MicroBatch::packed, which modules never see).
  bool takes_packed_rows = false;
  // How many counters the loss returns behind the sum.
  int counters = 0;
};

namespace detail {

// torch::nn::Module has no virtual forward: the module and how to call it.
struct CallableModule {
  std::shared_ptr<torch::nn::Module> module;
  std::function<at::Tensor(const at::Tensor&)> forward;
};
// original: what make() copies; null when it makes a module anew.
ModelSpec model_of_one_block(std::function<CallableModule()> make,
                             std::shared_ptr<const torch::nn::Module> original, LossFunction loss,
                             const ModuleOptions& options);

template <typename M>
CallableModule callable(std::shared_ptr<M> module) {
  return {module, [module](const at::Tensor& input) { return module->forward(input); }};
}
template <typename Holder>
requires requires(const Holder& holder) { holder.ptr()->forward(at::Tensor()); }
CallableModule callable(const Holder& holder) { return callable(holder.ptr()); }

template <typename M>
std::shared_ptr<M> pointer(const std::shared_ptr<M>& module) {
  return module;
}
template <typename Holder>
auto pointer(const Holder& holder) {
  return holder.ptr();
}

template <typename M>
std::shared_ptr<M> clone(const std::shared_ptr<M>& module) {
  auto copy = std::dynamic_pointer_cast<M>(module->clone());
  if (copy == nullptr) throw std::runtime_error("it returned a module of another type");
  return copy;
}

}  // namespace detail

// The module as one block. It is given as
//   a function that makes it, e.g. [] { return std::make_shared<Net>(784, 10); }: called once per
//   rank with the default generators seeded from the run's seed, so that every rank draws the same
//   weights; or the module itself (shared_ptr or holder; it must derive from torch::nn::Cloneable):
//   every rank trains a copy of it as it is at attach(). Values, ties and modes are copied also
//   where clone() leaves them out, as it does with children that are not Cloneable. The module
//   itself stays as it is.
// Either way every data rank starts with the values of the first one, in tensors of its own. A
// tensor that a copy would share with the module is refused. So is one that the function returns
// twice, or that several ranks return.
//
// Input and output. forward() takes micro_batch.input_ids (cast to the weights' dtype when it is
// floating) and returns one tensor. It may change its input in place; the micro-batch's own tensors
// stay as they are.
// Modes. Modules are in training mode where micro_batch.training is set, else in eval mode. Those
// that are in eval mode inside a module in training mode when the block is built (a BatchNorm whose
// statistics are to stay) remain so.
// Random numbers. What forward() and the loss draw from LibTorch's default generators (dropout)
// depends on micro_batch.seed and the block's place: the same on every layout of ranks, and again
// when the block runs again for backward. The generators' own states are put back. They belong to
// the process, so on the CPU ranks that are threads take turns in blocks that may draw: all but
// those made of LibTorch's own layers without randomness. So forward() must not wait for other
// ranks.
// Parameters. One that needs no gradient is frozen. Those with two or more dimensions decay. A
// tensor registered under several names is one parameter, under its first name; so is one that was
// assigned to the weight of another Linear, Embedding or Conv (head->weight = table->weight).
// Parameters that share memory in another way are refused.
// Buffers stay on every rank. Constants must be equal on all ranks; forward() may not change them.
// Floating ones are kept in fp32; the module sees them in the dtype of the weights, as after
// Module::to(dtype). Running statistics (buffers named running_mean, running_var,
// num_batches_tracked) need ModuleOptions and fp32 weights; they advance once a micro-batch, also
// under gradient checkpointing.
// Refusals are Error(kInvalidArgument) with the block's and the tensor's name: when the block is
// built, or when its forward() does what it may not. Errors of LibTorch inside forward() get the
// block's name added and keep their type.
template <typename ModuleOrFunction>
ModelSpec from_module(ModuleOrFunction module, LossFunction loss,
                      const ModuleOptions& options = {}) {
  if constexpr (requires { module.get(); }) {
    const auto original = detail::pointer(module);
    return detail::model_of_one_block(
        [original] { return detail::callable(detail::clone(original)); }, original, std::move(loss),
        options);
  } else {
    return detail::model_of_one_block([module] { return detail::callable(module()); }, nullptr,
                                      std::move(loss), options);
  }
}

// One block per child, the loss in the last one; children take and return one tensor. Otherwise as
// from_module(module): built blocks are copies. A tensor that several children have (a child that
// stands there twice) is one parameter, tied.
ModelSpec from_sequential(std::shared_ptr<torch::nn::SequentialImpl> sequential, LossFunction loss,
                          const ModuleOptions& options = {});

template <typename Holder>
requires requires(const Holder& holder) { holder.ptr(); }
ModelSpec from_sequential(const Holder& sequential, LossFunction loss,
                          const ModuleOptions& options = {}) {
  return from_sequential(sequential.ptr(), std::move(loss), options);
}

}  // namespace tessera
