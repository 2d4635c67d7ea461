// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Element-wise classes of torch::optim, under every strategy:
///   #include <torch/optim/rmsprop.h>
///   make_from_torch<torch::optim::RMSprop>(torch::optim::RMSpropOptions().momentum(0.9))
/// A step synchronises with the device and launches each operation per range: the library's own
/// optimizers (adamw.h, sgd.h, lion.h, adagrad.h) are faster.
#include <cstdint>
#include <memory>
#include <string>
#include <tuple>
#include <type_traits>
#include <typeinfo>
#include <utility>
#include <vector>

#include "tessera/optim/optimizer.h"

namespace torch::optim {
class Adagrad;
class Adam;
class AdamW;
class RMSprop;
class SGD;
struct AdagradParamState;
struct AdamParamState;
struct AdamWParamState;
struct RMSpropParamState;
struct SGDParamState;
}  // namespace torch::optim

namespace tessera {

/// State class of an optimizer T, a torch::optim::OptimizerParamState. Specialize it for a custom
/// class. Tensors are found by torch's names: exp_avg, exp_avg_sq, max_exp_avg_sq, sum, square_avg,
/// grad_avg, momentum_buffer.
template <typename T>
struct TorchParamState {
  using type = void;  ///< void: T is unknown
};
/// @cond
template <>
struct TorchParamState<torch::optim::Adagrad> {
  using type = torch::optim::AdagradParamState;
};
template <>
struct TorchParamState<torch::optim::Adam> {
  using type = torch::optim::AdamParamState;
};
template <>
struct TorchParamState<torch::optim::AdamW> {
  using type = torch::optim::AdamWParamState;
};
template <>
struct TorchParamState<torch::optim::RMSprop> {
  using type = torch::optim::RMSpropParamState;
};
template <>
struct TorchParamState<torch::optim::SGD> {
  using type = torch::optim::SGDParamState;
};
/// @endcond

/// A class of torch::optim with its options.
class TorchOptimizer {
 public:
  virtual ~TorchOptimizer() = default;
  virtual bool takes_betas() const = 0;      ///< whether it uses a group's betas
  virtual double learning_rate() const = 0;  ///< rate in the options
  /// State of a parameter before a run().
  struct Start {
    /// The piece of a parameter, whose decay and betas replace the options'.
    const OptimizerRange& range;
    double learning_rate = 0;  ///< learning rate of the step
    int64_t steps = 0;         ///< steps made so far
    /// State after these steps, by the names of TorchParamState; empty: initial.
    NamedTensors state;
  };
  /// Makes the class for one parameter and steps once per gradient; returns its state. start: null:
  /// the options as they are.
  virtual NamedTensors run(const at::Tensor& parameter, const std::vector<at::Tensor>& gradients,
                           const Start* start) const = 0;
};

/// Factory of the template below; name: for messages.
OptimizerFactory make_from_torch(const std::string& name,
                                 const std::shared_ptr<const TorchOptimizer>& optimizer);
/// Throws Error(kInvalidArgument): T has no TorchParamState.
[[noreturn]] void refuse_torch_optimizer(const std::string& name);

/// T with its options and its State class.
template <typename T, typename State, typename Options>
class TorchOptimizerOf final : public TorchOptimizer {
 public:
  /// Copies the options.
  explicit TorchOptimizerOf(Options options) : options_(std::move(options)) {}

  bool takes_betas() const override { return kBetas; }
  double learning_rate() const override { return options_.get_lr(); }

  NamedTensors run(const at::Tensor& parameter, const std::vector<at::Tensor>& gradients,
                   const Start* start) const override {
    T optimizer(std::vector<at::Tensor>{parameter}, start ? options_of(*start) : options_);
    auto& kept = optimizer.state();
    if (start) {
      auto state = std::make_unique<State>();
      if constexpr (requires(State & s) { s.step(int64_t{0}); }) state->step(start->steps);
      for (const auto& [name, tensor] : start->state) {
        for_tensors(*state, [&](const char* member, const at::Tensor&, const auto& set) {
          if (name == member) set(tensor);
        });
      }
      kept[parameter.unsafeGetTensorImpl()] = std::move(state);
    }
    for (const at::Tensor& gradient : gradients) {
      parameter.mutable_grad() = gradient;
      optimizer.step();
    }
    NamedTensors state;
    const auto found = kept.find(parameter.unsafeGetTensorImpl());
    if (found == kept.end()) return state;
    for_tensors(static_cast<State&>(*found->second),
                [&](const char* member, const at::Tensor& tensor, const auto&) {
                  if (tensor.defined()) state.emplace_back(member, tensor);
                });
    return state;
  }

 private:
  static constexpr bool kBetas = requires(Options & o) { o.betas(std::make_tuple(0.9, 0.9)); };

  Options options_of(const Start& start) const {
    Options options = options_;
    options.set_lr(start.learning_rate);
    if constexpr (requires(Options & o) { o.weight_decay(0.0); }) {
      options.weight_decay(start.range.decay(options_.weight_decay()));
    }
    if constexpr (kBetas) {
      if (const auto& betas = start.range.rule.betas) {
        options.betas(std::make_tuple(betas->first, betas->second));
      }
    }
    return options;
  }

  /// Calls fn(name, tensor, set) for the tensors that the state has.
  template <typename Fn>
  static void for_tensors(State& state, const Fn& fn) {
#define TESSERA_TORCH_STATE(member)                                                       \
  if constexpr (requires(State & s, const at::Tensor& x) { s.member(x); }) {              \
    fn(#member, state.member(), [&](const at::Tensor& tensor) { state.member(tensor); }); \
  }
    TESSERA_TORCH_STATE(exp_avg)
    TESSERA_TORCH_STATE(exp_avg_sq)
    TESSERA_TORCH_STATE(max_exp_avg_sq)
    TESSERA_TORCH_STATE(sum)
    TESSERA_TORCH_STATE(square_avg)
    TESSERA_TORCH_STATE(grad_avg)
    TESSERA_TORCH_STATE(momentum_buffer)
#undef TESSERA_TORCH_STATE
  }

  const Options options_;
};

/// Makes the optimizer. T: a class of torch::optim, or a custom one with a TorchParamState. Tries a
/// step on a small parameter. Throws Error(kInvalidArgument) unless it is element-wise (unlike
/// LBFGS) and starts with zeros.
template <typename T, typename Options>
OptimizerFactory make_from_torch(Options options) {
  constexpr bool kIncluded = requires { sizeof(T); };
  static_assert(kIncluded, "include the class, as <torch/optim/rmsprop.h>");
  if constexpr (kIncluded) {
    constexpr bool kFits = requires(Options & o) {
      T(std::vector<at::Tensor>(), o);
      o.set_lr(o.get_lr());
    };
    static_assert(kFits, "give the options of this class, as torch::optim::RMSpropOptions()");
    using State = typename TorchParamState<T>::type;
    const std::string name = typeid(T).name();
    if constexpr (std::is_void_v<State>) {
      refuse_torch_optimizer(name);
    } else if constexpr (kFits) {
      return make_from_torch(
          name, std::make_shared<const TorchOptimizerOf<T, State, Options>>(std::move(options)));
    }
  }
}

}  // namespace tessera
