// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Models from callables: several inputs and outputs, any loss, and blocks that pass tuples.
#include <array>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "tessera/model/adapters.h"

namespace tessera {

/// Most tensors that a block takes from the previous one.
inline constexpr int kMostTensors = 4;

namespace detail {

template <typename Result>
concept IsLoss = std::convertible_to<Result, LossResult> || std::convertible_to<Result, at::Tensor>;

/// Users' functions may leave the context out.
template <typename Function, typename... Before>
concept TakesBatch = std::invocable<const Function&, Before..., const MicroBatch&>;
template <typename Function, typename... Before>
concept TakesContext =
    std::invocable<const Function&, Before..., const MicroBatch&, const BlockContext&>;

/// `before` are the module, tensors, both, or nothing.
template <typename Function, typename... Before>
requires TakesBatch<Function, Before&...> || TakesContext<Function, Before&...>
decltype(auto) call_users(const Function& function, const MicroBatch& batch,
                          const BlockContext& context, Before&... before) {
  if constexpr (TakesBatch<Function, Before&...>) {
    return function(before..., batch);
  } else {
    return function(before..., batch, context);
  }
}
template <typename Function, typename... Before>
using ResultOf =
    decltype(call_users(std::declval<const Function&>(), std::declval<const MicroBatch&>(),
                        std::declval<const BlockContext&>(), std::declval<Before&>()...));

template <typename Step, typename M>
concept IsStep = IsLoss<ResultOf<Step, M>>;

template <typename Scores, typename M>
concept IsScores = std::convertible_to<ResultOf<Scores, M>, at::Tensor>;

template <typename Result>
LossResult loss_of(Result&& result) {
  if constexpr (std::convertible_to<Result, at::Tensor>) {
    return {.loss = std::forward<Result>(result)};
  } else {
    return std::forward<Result>(result);
  }
}

/// Number of tensors in a function's signature (module M unless void, tensors, micro-batch, with
/// the context if it needs it); -1: another signature. The lowest of several possible numbers.
template <typename Function, typename M, bool WithContext, size_t... I>
constexpr bool takes(std::index_sequence<I...>) {
  using Given = std::array<const at::Tensor, kMostTensors + 1>;
  if constexpr (std::is_void_v<M> && WithContext) {
    return TakesContext<Function, std::tuple_element_t<I, Given>&...>;
  } else if constexpr (std::is_void_v<M>) {
    return TakesBatch<Function, std::tuple_element_t<I, Given>&...>;
  } else if constexpr (WithContext) {
    return TakesContext<Function, M&, std::tuple_element_t<I, Given>&...>;
  } else {
    return TakesBatch<Function, M&, std::tuple_element_t<I, Given>&...>;
  }
}
template <typename Function, typename M, size_t Least = 0, size_t N = Least,
          bool WithContext = false>
constexpr int tensors_taken() {
  if constexpr (takes<Function, M, WithContext>(std::make_index_sequence<N>())) {
    return static_cast<int>(N);
  } else if constexpr (N < kMostTensors) {
    return tensors_taken<Function, M, Least, N + 1, WithContext>();
  } else if constexpr (!WithContext) {
    return tensors_taken<Function, M, Least, Least, true>();
  } else {
    return -1;
  }
}

/// before: the module, or nothing.
template <int Count, typename Function, typename... Before>
decltype(auto) call_with(const Function& function, const Tensors& given, const MicroBatch& batch,
                         const BlockContext& context, Before&... before) {
  return [&]<size_t... I>(std::index_sequence<I...>)->decltype(auto) {
    return call_users(function, batch, context, before..., given[I]...);
  }
  (std::make_index_sequence<Count>());
}
template <int Count, typename Function, typename... Before>
using ResultWith =
    decltype(call_with<Count>(std::declval<const Function&>(), std::declval<const Tensors&>(),
                              std::declval<const MicroBatch&>(),
                              std::declval<const BlockContext&>(), std::declval<Before&>()...));

template <typename Result>
constexpr int tensors_given() {
  if constexpr (std::convertible_to<Result, at::Tensor>) {
    return 1;
  } else if constexpr (requires { std::tuple_size<Result>::value; }) {
    return []<size_t... I>(std::index_sequence<I...>) {
      return (std::convertible_to<std::tuple_element_t<I, Result>, at::Tensor> && ...) &&
                     sizeof...(I) > 0 && sizeof...(I) <= kMostTensors
                 ? static_cast<int>(sizeof...(I))
                 : -1;
    }
    (std::make_index_sequence<std::tuple_size_v<Result>>());
  } else {
    return -1;
  }
}
template <typename Result>
Tensors list_of(Result&& result) {
  if constexpr (std::convertible_to<Result, at::Tensor>) {
    return {std::forward<Result>(result)};
  } else {
    return std::apply([](const auto&... tensors) { return Tensors{tensors...}; }, result);
  }
}

/// Calls the module's own forward().
struct CallsForward {
  template <typename M, typename... Given>
  static constexpr bool kTakes = requires(M& module, const Given&... given) {
    module.forward(given...);
  };
  using T = at::Tensor;
  template <typename M>
  requires kTakes<M, T>
  auto operator()(M& module, const T& a, const MicroBatch&) const { return module.forward(a); }
  template <typename M>
  requires kTakes<M, T, T>
  auto operator()(M& module, const T& a, const T& b, const MicroBatch&) const {
    return module.forward(a, b);
  }
  template <typename M>
  requires kTakes<M, T, T, T>
  auto operator()(M& module, const T& a, const T& b, const T& c, const MicroBatch&) const {
    return module.forward(a, b, c);
  }
};

using ChainLoss =
    std::function<LossResult(const Tensors& given, const MicroBatch&, const BlockContext&)>;
ModelSpec chain_of(std::vector<ModelSpec> parts);
/// The model followed by this loss.
ModelSpec with_loss(ModelSpec model, ChainLoss loss, int takes, const ModuleOptions& options);

template <typename Loss>
ModelSpec with_loss(ModelSpec model, Loss loss, const ModuleOptions& options) {
  constexpr int kTaken = tensors_taken<Loss, void, 1>();
  static_assert(
      kTaken > 0,
      "chain, from_children: the loss must be callable (as const) with one to four tensors "
      "and the micro-batch: (const at::Tensor&, ..., const MicroBatch&); a const BlockContext& may "
      "stand behind it");
  if constexpr (kTaken > 0) {
    using Result = ResultWith<kTaken, Loss>;
    static_assert(IsLoss<Result>,
                  "chain, from_children: the loss must return a tessera::LossResult or an "
                  "at::Tensor");
    if constexpr (IsLoss<Result>) {
      return with_loss(
          std::move(model),
          [loss](const Tensors& given, const MicroBatch& batch, const BlockContext& context) {
            return loss_of(call_with<kTaken>(loss, given, batch, context));
          },
          kTaken, options);
    }
  }
}

/// A child called by its own forward(); takes -1: unknown class.
struct Child {
  CallableModule callable = {};
  int takes = -1, gives = -1;
};
using ChildFinder = std::function<Child(const std::shared_ptr<torch::nn::Module>&)>;

template <typename Given>
bool call_child(const std::shared_ptr<torch::nn::Module>& child, Child& call) {
  using M = std::conditional_t<std::is_void_v<ModuleOf<Given>>, Given, ModuleOf<Given>>;
  constexpr int kTaken = tensors_taken<CallsForward, M>();
  static_assert(kTaken > 0,
                "from_children: the classes named must have a forward() of one to three tensors");
  if constexpr (kTaken > 0) {
    const auto typed = std::dynamic_pointer_cast<M>(child);
    if (typed == nullptr) return false;
    using Result = std::remove_cvref_t<ResultWith<kTaken, CallsForward, M>>;
    static_assert(tensors_given<Result>() > 0,
                  "from_children: forward() of the classes named must return a tensor, or a tuple, "
                  "pair or array of one to four tensors");
    if constexpr (tensors_given<Result>() > 0) {
      const auto forward = [typed](const Tensors& given, const MicroBatch& batch,
                                   const BlockContext& context) {
        return list_of(call_with<kTaken>(CallsForward(), given, batch, context, *typed));
      };
      call = {
          {child, forward, nullptr, /*sees_micro_batch=*/false}, kTaken, tensors_given<Result>()};
    }
  }
  return true;
}
Child child_of_torch(const std::shared_ptr<torch::nn::Module>& child);
ModelSpec children_of(const ModuleSource& source, const std::vector<std::string>& names,
                      const ChildFinder& find, const ModuleOptions& options);

}  // namespace detail

/// The module as one block with a custom training step: several inputs, losses of several outputs,
/// auxiliary losses, terms of the weights:
///   from_callable(net, [](Net& net, const MicroBatch& batch) -> LossResult {
///     const auto [scores, balance] = net->forward(batch.input_ids, batch.get("image"));
///     return {F::cross_entropy(scores, batch.labels) + 0.01 * balance};
///   }, {.reduction = LossReduction::kMean});
/// The step returns a LossResult, or the loss alone; it is called once per micro-batch. If a sum
/// contains a division, the first micro-batch checks it: the step is called twice more, in eval
/// mode without gradients (see LossFunction). kMean and kNone avoid these calls. Add terms that are
/// no sum over targets to a mean unchanged, and to a sum times batch.target_count. The rules of
/// from_module() apply; floating tensors of input_ids and extra come in the weights' dtype, and the
/// step may change no tensor of the micro-batch. Without scores, neither predict() nor forward() of
/// a strategy works; to support them, pass a function that returns them:
///   from_callable(net, step, [](Net& net, const MicroBatch& batch) { return net.forward(...); })
/// A step that wants the seed, the mode, or the ranks of all_gather() takes a const BlockContext&
/// behind the micro-batch. So may the scores, forward of block_of() and the loss of chain().
template <typename Module, typename Step>
ModelSpec from_callable(const Module& module, Step step, const ModuleOptions& options = {}) {
  using M = detail::ModuleOf<Module>;
  static_assert(detail::IsModule<M>,
                "from_callable: the module, of a class derived from torch::nn::Module, is given as "
                "a shared_ptr, a holder (TORCH_MODULE), a function that returns one of them, or "
                "with_values(function, module)");
  if constexpr (detail::IsModule<M>) {
    static_assert(
        detail::IsStep<Step, M>,
        "from_callable: the step must be callable (as const) with the module and the "
        "micro-batch, (M&, const MicroBatch&), or also with the context, (M&, const MicroBatch&, "
        "const BlockContext&), where M is the module's class (of a holder Net: NetImpl), and must "
        "return a tessera::LossResult or an at::Tensor");
    if constexpr (detail::IsStep<Step, M>) {
      const auto callable = [step](std::shared_ptr<M> made) {
        return detail::CallableModule{
            .module = made,
            .step = [made, step](const MicroBatch& batch, const BlockContext& context) {
              return detail::loss_of(detail::call_users(step, batch, context, *made));
            }};
      };
      return detail::model_of_one_block(detail::source_of(module, callable), nullptr, options, 0,
                                        0);
    }
  }
}

/// from_callable() with scores for predict() and forward() of a strategy: scores(M&, const
/// MicroBatch&) returns a tensor and ignores labels.
template <typename Module, typename Step, typename Scores>
requires(!std::convertible_to<Scores, ModuleOptions>) ModelSpec
    from_callable(const Module& module, Step step, Scores scores,
                  const ModuleOptions& options = {}) {
  using M = detail::ModuleOf<Module>;
  static_assert(detail::IsModule<M>,
                "from_callable: the module, of a class derived from torch::nn::Module, is given as "
                "a shared_ptr, a holder (TORCH_MODULE), a function that returns one of them, or "
                "with_values(function, module)");
  if constexpr (detail::IsModule<M>) {
    static_assert(
        detail::IsStep<Step, M>,
        "from_callable: the step must be callable (as const) with the module and the "
        "micro-batch, (M&, const MicroBatch&), or also with the context, (M&, const MicroBatch&, "
        "const BlockContext&), where M is the module's class (of a holder Net: NetImpl), and must "
        "return a tessera::LossResult or an at::Tensor");
    static_assert(
        detail::IsScores<Scores, M>,
        "from_callable: the scores must be a function, callable (as const) with the "
        "module and the micro-batch, (M&, const MicroBatch&), or also with the context, (M&, const "
        "MicroBatch&, const BlockContext&), that returns an at::Tensor");
    if constexpr (detail::IsStep<Step, M> && detail::IsScores<Scores, M>) {
      const auto callable = [step, scores](std::shared_ptr<M> made) {
        return detail::CallableModule{
            .module = made,
            .step =
                [made, step](const MicroBatch& batch, const BlockContext& context) {
                  return detail::loss_of(detail::call_users(step, batch, context, *made));
                },
            .scores =
                [made, scores](const MicroBatch& batch, const BlockContext& context) {
                  return at::Tensor(detail::call_users(scores, batch, context, *made));
                }};
      };
      return detail::model_of_one_block(detail::source_of(module, callable), nullptr, options, 0,
                                        0);
    }
  }
}

/// The module as a block without a loss, for chain(). forward(M&, tensors..., const MicroBatch&)
/// takes the previous block's tensors, up to kMostTensors; the first block's takes
/// micro_batch.input_ids or only the micro-batch. It returns a tensor or a tuple of tensors, whose
/// shapes follow from those in the micro-batch. Tensors of a tuple are floating; pass others in
/// MicroBatch::extra, which every block sees. Default: the module's own forward(tensors...).
template <typename Module, typename Forward = detail::CallsForward>
ModelSpec block_of(const Module& module, Forward forward = {}, const ModuleOptions& options = {}) {
  using M = detail::ModuleOf<Module>;
  static_assert(detail::IsModule<M>,
                "block_of: the module, of a class derived from torch::nn::Module, is given as a "
                "shared_ptr, a holder (TORCH_MODULE), a function that returns one of them, or "
                "with_values(function, module)");
  if constexpr (detail::IsModule<M>) {
    constexpr int kTaken = detail::tensors_taken<Forward, M>();
    static_assert(
        kTaken >= 0,
        "block_of: forward must be callable (as const) with the module, up to four tensors "
        "and the micro-batch: (M&, const at::Tensor&, ..., const MicroBatch&); a const "
        "BlockContext& may stand behind it; without a function the module must have forward() of "
        "one to three tensors");
    if constexpr (kTaken >= 0) {
      using Result = std::remove_cvref_t<detail::ResultWith<kTaken, Forward, M>>;
      constexpr int kGiven = detail::tensors_given<Result>();
      static_assert(kGiven >= 0,
                    "block_of: forward must return a tensor, or a tuple, pair or array of one to "
                    "four tensors");
      if constexpr (kGiven >= 0) {
        const auto callable = [forward](std::shared_ptr<M> made) {
          return detail::CallableModule{
              .module = made,
              .forward = [made, forward](const detail::Tensors& given, const MicroBatch& batch,
                                         const BlockContext& context) {
                return detail::list_of(
                    detail::call_with<kTaken>(forward, given, batch, context, *made));
              }};
        };
        return detail::model_of_one_block(detail::source_of(module, callable), nullptr, options,
                                          kTaken, kGiven);
      }
    }
  }
}

/// Concatenates parts and appends the loss of the last one's output: loss(tensors..., const
/// MicroBatch&) -> LossResult or the loss alone. Parts come from block_of(), or are other models
/// without a loss. The block of part i is named "i", those of a part with several blocks "i.name",
/// also in checkpoints. options: counters and reduction of the loss. Throws Error(kInvalidArgument)
/// if a part returns other tensors than the next one takes.
template <typename Loss>
ModelSpec chain(std::vector<ModelSpec> parts, Loss loss, const ModuleOptions& options = {}) {
  return detail::with_loss(detail::chain_of(std::move(parts)), std::move(loss), options);
}

/// Makes blocks of the module's children of these names ("encoder.0"), followed by the loss as in
/// chain(). Blocks have the children's names and call their forward(tensors...). List classes that
/// are not LibTorch's:
///   from_children<Embed, Layer>(net, {"embed", "layers.0", "layers.1", "head"}, loss)
/// Pass the module as to from_module(), except as a function alone. Throws Error(kInvalidArgument)
/// for an unknown name or class, and for a parameter of the module that is in none of the children.
template <typename... Types, typename Module, typename Loss>
ModelSpec from_children(const Module& module, const std::vector<std::string>& names, Loss loss,
                        const ModuleOptions& options = {}) {
  using M = detail::ModuleOf<Module>;
  constexpr bool kIsModule = detail::IsModule<M> && !detail::MakesModule<Module>;
  static_assert(kIsModule,
                "from_children: the module, of a class derived from torch::nn::Module, is given as "
                "a shared_ptr, a holder (TORCH_MODULE), or with_values(function, module)");
  if constexpr (kIsModule) {
    const auto find = [](const std::shared_ptr<torch::nn::Module>& child) {
      detail::Child call;
      if (!(detail::call_child<Types>(child, call) || ...)) call = detail::child_of_torch(child);
      return call;
    };
    const auto root = [](std::shared_ptr<M> made) {
      return detail::CallableModule{.module = std::move(made)};
    };
    return detail::with_loss(
        detail::children_of(detail::source_of(module, root), names, find, options), std::move(loss),
        options);
  }
}

/// The model with two parameters tied, each "block.parameter": the alias uses the owner's tensor.
/// Throws Error(kInvalidArgument) for unknown blocks. Building it throws for unknown parameters and
/// different shapes.
ModelSpec tie(ModelSpec model, const std::string& owner, const std::string& alias);

}  // namespace tessera
