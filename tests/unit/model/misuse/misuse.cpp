// SPDX-License-Identifier: MIT
// Programs that must not compile; misuse.py compiles them and looks for what each says.
#include "tessera/model/callable.h"

namespace torch::nn {
class Module {
 public:
  virtual ~Module();
  std::shared_ptr<Module> clone() const;
};
}  // namespace torch::nn

using namespace tessera;

struct Net : torch::nn::Module {
  at::Tensor forward(const at::Tensor& a, const at::Tensor& b);
};
struct Other : torch::nn::Module {
  at::Tensor forward(const at::Tensor& a);
};
struct NoModule {};

at::Tensor tensor();

void programs(std::shared_ptr<Net> net, std::shared_ptr<Other> other,
              std::shared_ptr<NoModule> none) {
  const auto step = [](Net&, const MicroBatch&) { return tensor(); };
  const auto loss = [](const at::Tensor&, const MicroBatch&) { return tensor(); };

  // says: from_callable: the step must be callable
  from_callable(net, [](const at::Tensor&, const MicroBatch&) { return tensor(); });
  // says: must return a tessera::LossResult or an at::Tensor
  from_callable(net, [](Net&, const MicroBatch&) { return 1.0; });
  // says: from_callable: the step must be callable
  from_callable(net, [](Net&, const BlockContext&) { return tensor(); });
  // says: LossFunction: the loss must be callable
  from_module(other, [](const at::Tensor&, const BlockContext&) { return tensor(); });
  // says: from_callable: the step must be callable (as const)
  from_callable(net, [calls = 0](Net&, const MicroBatch&) mutable { return ++calls, tensor(); });
  // says: from_callable: the module, of a class derived from torch::nn::Module
  from_callable(3, step);
  // says: from_callable: the module, of a class derived from torch::nn::Module
  from_callable(none, [](NoModule&, const MicroBatch&) { return tensor(); });
  // says: with_values(make, module): make must be a function that returns a module of the same
  // class
  from_callable(with_values([other] { return other; }, net), step);
  // says: from_module: the module's forward() must take one tensor and return one
  from_module(net, loss);
  // says: block_of: forward must be callable
  block_of(net, [](Net&, int) { return tensor(); });
  // says: block_of: forward must return a tensor, or a tuple
  block_of(other, [](Other&, const at::Tensor&, const MicroBatch&) { return 3; });
  // says: the loss must be callable
  chain({block_of(other)}, [](const MicroBatch&) { return tensor(); });
  // says: the loss must return a tessera::LossResult
  chain({block_of(other)}, [](const at::Tensor&, const MicroBatch&) { return 3; });
  // says: from_children: the module, of a class derived from torch::nn::Module
  from_children([other] { return other; }, {"0"}, loss);
}
