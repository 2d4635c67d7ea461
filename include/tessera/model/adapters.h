#pragma once
// Makes any torch::nn module a model that every strategy can train.
#include <functional>

#include "tessera/model/model_spec.h"

namespace torch::nn {
class Module;
class SequentialImpl;
}  // namespace torch::nn

namespace tessera {

// (output of the module, micro-batch) -> SUM of the loss over the micro-batch's targets, a scalar.
using LossFunction = std::function<at::Tensor(const at::Tensor& output, const MicroBatch&)>;

// One block. make() builds the module (called once per rank, after seeding the default generator); call() runs it on micro_batch.input_ids, because
// torch::nn::Module has no virtual forward.
template <typename Module>
ModelSpec from_module(std::function<std::shared_ptr<Module>()> make, LossFunction loss);

// One block per child, the loss in the last one. A child is any module whose forward takes and returns one tensor. The sequential's parameters are taken
// over: do not use it afterwards.
ModelSpec from_sequential(const std::shared_ptr<torch::nn::SequentialImpl>& sequential, LossFunction loss);

}  // namespace tessera
