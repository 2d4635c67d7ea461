#pragma once
// Makes any torch::nn module a model that every strategy can train.
#include <functional>
#include <memory>
#include <utility>

#include "tessera/model/model_spec.h"

namespace torch::nn {
class Module;
class SequentialImpl;
}  // namespace torch::nn

namespace tessera {

// (output of the module in fp32, micro-batch) -> SUM of the loss over the micro-batch's targets: a
// scalar, or a 1-D tensor whose further elements are counters as Block describes them. Divide by
// nothing: strategies divide by the global target count.
using LossFunction = std::function<at::Tensor(const at::Tensor& output, const MicroBatch&)>;

namespace detail {

// torch::nn::Module has no virtual forward: the module and how to call it.
struct CallableModule {
  std::shared_ptr<torch::nn::Module> module;
  std::function<at::Tensor(const at::Tensor&)> forward;
};
ModelSpec model_of_one_block(std::function<CallableModule()> make, LossFunction loss);

template <typename M>
CallableModule callable(std::shared_ptr<M> module) {
  return {module, [module](const at::Tensor& input) { return module->forward(input); }};
}
template <typename Holder>
requires requires(const Holder& holder) { holder.ptr()->forward(at::Tensor()); }
CallableModule callable(const Holder& holder) { return callable(holder.ptr()); }

template <typename M>
std::shared_ptr<M> clone(const std::shared_ptr<M>& module) {
  return std::dynamic_pointer_cast<M>(module->clone());
}
template <typename Holder>
auto clone(const Holder& holder) {
  return clone(holder.ptr());
}

}  // namespace detail

// The module as one block. It is given as
//   a function that makes it, e.g. [] { return std::make_shared<Net>(784, 10); }: called once per
//   rank with the default CPU generator seeded from the run's seed, so that every rank draws the
//   same weights; or the module itself (shared_ptr or holder; it must derive from
//   torch::nn::Cloneable): every rank trains a copy of its weights, so every process must pass
//   equal ones.
// forward() takes micro_batch.input_ids (cast to the weights' dtype when it is floating) and
// returns one tensor. It runs in eval mode when gradients are off. All parameters need gradients;
// buffers (as of BatchNorm) are refused, because no strategy would synchronise or save them.
// Parameters with two or more dimensions decay. Refusals are Error(kInvalidArgument) with the
// tensor's name when the block is built.
template <typename ModuleOrFunction>
ModelSpec from_module(ModuleOrFunction module, LossFunction loss) {
  if constexpr (requires { module.get(); }) {
    return detail::model_of_one_block([module] { return detail::callable(detail::clone(module)); },
                                      std::move(loss));
  } else {
    return detail::model_of_one_block([module] { return detail::callable(module()); },
                                      std::move(loss));
  }
}

// One block per child, the loss in the last one; children take and return one tensor. Otherwise as
// from_module(module): built blocks are copies.
ModelSpec from_sequential(std::shared_ptr<torch::nn::SequentialImpl> sequential, LossFunction loss);

template <typename Holder>
requires requires(const Holder& holder) { holder.ptr(); }
ModelSpec from_sequential(const Holder& sequential, LossFunction loss) {
  return from_sequential(sequential.ptr(), std::move(loss));
}

}  // namespace tessera
