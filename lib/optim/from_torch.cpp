// SPDX-License-Identifier: MIT
#include "tessera/optim/from_torch.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/grad_mode.h>
#include <c10/util/Type.h>

#include <algorithm>
#include <cmath>

#include "lib/optim/description.h"
#include "lib/optim/flat_optimizer.h"
#include "tessera/core/error.h"

namespace tessera {
namespace {

constexpr const char* kPieces = "; a strategy updates pieces of parameters, each for itself";

// Result and state of a step with a copy of the range.
NamedTensors step_of_copy(const TorchOptimizer& optimizer, const at::Tensor& parameter,
                          const at::Tensor& gradient, TorchOptimizer::Start start) {
  for (auto& [name, tensor] : start.state) tensor = tensor.clone();
  return optimizer.run(parameter, {gradient}, &start);
}

class FromTorch final : public FlatOptimizer {
 public:
  FromTorch(std::shared_ptr<const TorchOptimizer> optimizer, std::vector<std::string> states,
            std::string description, std::vector<OptimizerRange> ranges)
      : FlatOptimizer(std::move(states), std::move(ranges)),
        optimizer_(std::move(optimizer)),
        description_(std::move(description)) {}
  std::string describe() const override { return description_; }

 protected:
  at::Tensor updated(const Update& update, std::vector<at::Tensor>& state) const override {
    const at::Tensor parameter = update.range.parameter.detach().clone();
    if (parameter.numel() == 0) return parameter;
    TorchOptimizer::Start start{update.range,
                                update.learning_rate.item<double>(),
                                std::max<int64_t>(0, step_count().item<int64_t>() - 1),
                                {}};
    const std::vector<std::string> names = state_names();
    for (size_t i = 0; i < names.size(); ++i) start.state.emplace_back(names[i], state[i]);
    const NamedTensors kept =
        step_of_copy(*optimizer_, parameter, update.gradient, std::move(start));
    for (size_t i = 0; i < names.size(); ++i) state[i] = kept[i].second;
    return parameter;
  }

 private:
  const std::shared_ptr<const TorchOptimizer> optimizer_;
  const std::string description_;
};

// Result of three steps at one rate: depends on the options except for their own rate.
at::Tensor trial_of(const TorchOptimizer& optimizer, const std::vector<std::string>& names) {
  constexpr double kRate = 0.1;
  const at::NoGradGuard no_grad;
  const auto generator = at::make_generator<at::CPUGeneratorImpl>(2);
  const at::Tensor parameter = at::randn({4}, generator);
  const OptimizerRange range;
  NamedTensors state;
  for (const std::string& name : names) state.emplace_back(name, at::zeros({4}));
  for (int64_t step = 0; step < 3; ++step) {
    state =
        step_of_copy(optimizer, parameter, at::randn({4}, generator), {range, kRate, step, state});
  }
  return parameter;
}

// Names of the class's per-element state. Checks that two halves of a parameter, updated separately
// from zeros, give the same as the whole.
std::vector<std::string> probed(const std::string& name, const TorchOptimizer& optimizer) {
  constexpr int64_t kNumel = 8, kHalf = kNumel / 2;
  const at::NoGradGuard no_grad;
  const auto generator = at::make_generator<at::CPUGeneratorImpl>(1);
  const at::Tensor start = at::randn({kNumel}, generator), whole = start.clone();
  std::vector<at::Tensor> gradients;
  for (int step = 0; step < 3; ++step) gradients.push_back(at::randn({kNumel}, generator));
  std::vector<std::string> names;
  for (const auto& [member, tensor] : optimizer.run(whole, gradients, nullptr)) {
    check(tensor.sizes() == whole.sizes(), ErrorCode::kInvalidArgument, name, " keeps ", member,
          " in another shape than the parameter's", kPieces);
    names.push_back(member);
  }
  const OptimizerRange range;
  for (const int64_t begin : {int64_t{0}, kHalf}) {
    const at::Tensor half = start.narrow(0, begin, kHalf).clone();
    NamedTensors state;
    for (const std::string& member : names) state.emplace_back(member, at::zeros({kHalf}));
    for (size_t step = 0; step < gradients.size(); ++step) {
      state = step_of_copy(optimizer, half, gradients[step].narrow(0, begin, kHalf),
                           {range, optimizer.learning_rate(), static_cast<int64_t>(step), state});
    }
    check(at::allclose(half, whole.narrow(0, begin, kHalf), 1e-5, 1e-7),
          ErrorCode::kInvalidArgument, name,
          " is not element-wise, or does not begin with zeros: half a parameter alone is updated "
          "otherwise than in the whole",
          kPieces);
  }
  return names;
}

}  // namespace

void refuse_torch_optimizer(const std::string& name) {
  fail(ErrorCode::kInvalidArgument, c10::demangle(name.c_str()),
       " is not known to treat every element alone", kPieces,
       ". A class of your own says what it keeps by tessera::TorchParamState");
}

OptimizerFactory make_from_torch(const std::string& mangled,
                                 const std::shared_ptr<const TorchOptimizer>& optimizer) {
  const std::string name = c10::demangle(mangled.c_str());
  const std::vector<std::string> states = probed(name, *optimizer);
  const std::string text =
      concat(name, ", whose trial gave", trial_text(trial_of(*optimizer, states)));
  return [name, optimizer, states,
          text](std::vector<OptimizerRange> ranges) -> std::unique_ptr<Optimizer> {
    if (!optimizer->takes_betas()) refuse_betas(ranges, name);
    return std::make_unique<FromTorch>(optimizer, states, text, std::move(ranges));
  };
}

}  // namespace tessera
