// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Adapters: make any torch::nn module a model that every strategy can train.
#include <concepts>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <type_traits>
#include <utility>
#include <vector>

#include "tessera/core/micro_batch.h"
#include "tessera/model/block_context.h"
#include "tessera/model/loss.h"
#include "tessera/model/model_spec.h"

namespace torch::nn {
class Module;
class SequentialImpl;
}  // namespace torch::nn

namespace tessera {

/// Loss: (the module's output in fp32, micro-batch) -> SUM of the loss over the micro-batch's
/// targets. A scalar, or with ModuleOptions::counters a 1-D tensor whose further elements are
/// counters (see Block). Do not divide it: strategies divide by the sum of
/// MicroBatch::target_count. ModuleOptions::reduction declares another reduction. Floating labels
/// are fp32. Error(kInvalidArgument) for detectable violations:
///   any other shape;
///   a mean, which does not change when every row is duplicated. A loss that contains a division is
///   called once more to check, without gradients. For a loss of the whole micro-batch set
///   target_count to 1;
///   class weights of LibTorch, which divides by their sum;
///   mse_loss and similar losses over several numbers per row, if rows are counted as targets.
///
/// Made of a function of (const at::Tensor&, const MicroBatch&), or of one with a const
/// BlockContext& behind them: for the seed, the mode, or the ranks of all_gather().
class LossFunction {
 public:
  LossFunction(std::nullptr_t = nullptr) {}  ///< none
  template <typename Function>
  requires(!std::same_as<std::remove_cvref_t<Function>, LossFunction>)
      LossFunction(Function function) {
    constexpr bool kOfBatch =
        std::is_invocable_r_v<at::Tensor, Function&, const at::Tensor&, const MicroBatch&>;
    constexpr bool kOfContext = std::is_invocable_r_v<at::Tensor, Function&, const at::Tensor&,
                                                      const MicroBatch&, const BlockContext&>;
    static_assert(kOfBatch || kOfContext,
                  "LossFunction: the loss must be callable with the module's output and the "
                  "micro-batch, (const at::Tensor&, const MicroBatch&), or also with the context, "
                  "(const at::Tensor&, const MicroBatch&, const BlockContext&), and must return an "
                  "at::Tensor");
    if constexpr (kOfBatch) {
      std::function<at::Tensor(const at::Tensor&, const MicroBatch&)> loss = std::move(function);
      if (loss == nullptr) return;
      call_ = [loss = std::move(loss)](const at::Tensor& output, const MicroBatch& micro_batch,
                                       const BlockContext&) { return loss(output, micro_batch); };
    } else if constexpr (kOfContext) {
      call_ = std::move(function);
    }
  }
  at::Tensor operator()(const at::Tensor& output, const MicroBatch& micro_batch,
                        const BlockContext& context = {}) const {
    return call_(output, micro_batch, context);
  }
  explicit operator bool() const { return call_ != nullptr; }
  bool operator==(std::nullptr_t) const { return call_ == nullptr; }

 private:
  std::function<at::Tensor(const at::Tensor&, const MicroBatch&, const BlockContext&)> call_;
};

/// Properties that the adapters cannot detect.
struct ModuleOptions {
  /// Data rank whose running statistics (BatchNorm, InstanceNorm) are the model's; every data rank
  /// computes them from its own rows. Unset: modules with running statistics are an error.
  std::optional<int> running_statistics_of_rank = std::nullopt;
  /// Whether all modules treat each position by itself, so that rows may be packed
  /// (MicroBatch::packed, which modules never see).
  bool supports_packed_rows = false;
  /// Number of counters after the loss, or in LossResult::counters.
  int counters = 0;
  /// Reduction of the loss. kMean: the micro-batch's mean, weighted by target_count; an error with
  /// LibTorch's class weights, whose sum must be LossResult::divisor. kNone: without counters.
  LossReduction reduction = LossReduction::kSum;
};

namespace detail {

using Tensors = std::vector<at::Tensor>;

/// A module and how to call it, as torch::nn::Module has no virtual forward.
struct CallableModule {
  std::shared_ptr<torch::nn::Module> module;
  /// given: BlockBuilder::takes tensors; for a first block the micro-batch's input_ids, or none.
  std::function<Tensors(const Tensors& given, const MicroBatch&, const BlockContext&)> forward =
      nullptr;
  /// in place of forward
  std::function<LossResult(const MicroBatch&, const BlockContext&)> step = nullptr;
  bool sees_micro_batch = true;
  /// beside a step
  std::function<at::Tensor(const MicroBatch&, const BlockContext&)> scores = nullptr;
};
struct ModuleSource {
  std::function<CallableModule()> make;
  /// The module that make() copies; null if it creates a new one.
  std::shared_ptr<const torch::nn::Module> original = nullptr;
  const char* maker = "clone()";  ///< name of make() in messages
};
/// takes and gives: see BlockBuilder. gives 0: the block has the loss.
ModelSpec model_of_one_block(ModuleSource source, LossFunction loss, const ModuleOptions& options,
                             int takes, int gives);

template <typename Make, typename Values>
struct MadeWithValues {
  Make make;
  Values values;
};
template <typename Given>
inline constexpr bool kHasValues = false;
template <typename Make, typename Values>
inline constexpr bool kHasValues<MadeWithValues<Make, Values>> = true;

/// Class of the module behind a given argument; void: not a known kind.
template <typename Given>
struct ModuleType {
  using type = void;
};
template <typename M>
struct ModuleType<std::shared_ptr<M>> {
  using type = M;
};
template <typename Make, typename Values>
struct ModuleType<MadeWithValues<Make, Values>> : ModuleType<Values> {};
template <typename Holder>
requires requires(const Holder& holder) { holder.ptr(); }
struct ModuleType<Holder>
    : ModuleType<std::remove_cvref_t<decltype(std::declval<const Holder&>().ptr())>> {};
template <typename Function>
concept MakesModule = !requires(const Function& function) {
  function.ptr();
}
&&std::invocable<const Function&>;
template <MakesModule Function>
struct ModuleType<Function>
    : ModuleType<std::remove_cvref_t<std::invoke_result_t<const Function&>>> {};
template <typename Given>
using ModuleOf = typename ModuleType<Given>::type;

template <typename M>
concept IsModule = !std::is_void_v<M> &&
                   std::convertible_to<std::shared_ptr<M>, std::shared_ptr<torch::nn::Module>>;

template <typename M>
std::shared_ptr<M> pointer(const std::shared_ptr<M>& module) {
  return module;
}
template <typename Holder>
requires requires(const Holder& holder) { holder.ptr(); }
auto pointer(const Holder& holder) { return pointer(holder.ptr()); }

template <typename M>
std::shared_ptr<M> clone(const std::shared_ptr<M>& module) {
  auto copy = std::dynamic_pointer_cast<M>(module->clone());
  if (copy == nullptr) throw std::runtime_error("it returned a module of another type");
  return copy;
}

/// callable: makes a CallableModule from a pointer to the module.
template <typename Given, typename Callable>
ModuleSource source_of(const Given& given, const Callable& callable) {
  if constexpr (kHasValues<Given>) {
    constexpr bool kFits = std::same_as<ModuleOf<decltype(given.make)>, ModuleOf<Given>>;
    static_assert(kFits,
                  "with_values(make, module): make must be a function that returns a module of the "
                  "same class as `module`");
    if constexpr (kFits) {
      return {[make = given.make, callable] { return callable(pointer(make())); },
              pointer(given.values), "the function that makes the module"};
    }
  } else if constexpr (MakesModule<Given>) {
    return {[given, callable] { return callable(pointer(given())); }};
  } else {
    const auto original = pointer(given);
    return {[original, callable] { return callable(clone(original)); }, original};
  }
}

template <typename M>
concept TakesOneTensor = requires(M& module, const at::Tensor& input) {
  { module.forward(input) } -> std::convertible_to<at::Tensor>;
};

}  // namespace detail

/// Wraps a module without clone(): make() creates one of its class, which gets the values, ties and
/// modes of `module` at attach().
template <typename Make, typename Module>
auto with_values(Make make, Module module) {
  return detail::MadeWithValues<Make, Module>{std::move(make), std::move(module)};
}

/// The module as one block. Pass one of:
/// - a function that makes it, e.g. [] { return std::make_shared<Net>(784, 10); }: called once per
///   rank with the default generators seeded from the run's seed, so every rank draws the same
///   weights;
/// - with_values(function, module);
/// - the module itself (shared_ptr or holder; derived from torch::nn::Cloneable): every rank trains
///   a copy of its state at attach(). Values, ties and modes are copied even where clone() omits
///   them, as for children that are not Cloneable. The module itself does not change.
/// Every data rank starts with the first one's values, in its own tensors. Error(kInvalidArgument)
/// for a tensor that a copy would share with the module, that the function returns twice, or that
/// several ranks return.
///
/// - Input and output: forward() takes micro_batch.input_ids (cast to the weights' dtype if
///   floating) and returns one tensor. It may change its input in place, not the micro-batch's own
///   tensors.
/// - Modes: training mode with context.training, else eval mode. Submodules in eval mode when
///   the block is built (e.g. a frozen BatchNorm) stay in it.
/// - Random numbers: draws of forward() and the loss from LibTorch's default generators (dropout)
///   depend on context.seed and the block's index. They are the same under every layout of
///   ranks, and when backward recomputes the block. The generators' own states are restored. They
///   are process-wide, so on the CPU in-process ranks run blocks that may draw one at a time: all
///   but those of LibTorch's own layers without randomness. So forward() must not wait for other
///   ranks.
/// - Parameters: frozen if they need no gradient; with two or more dimensions they decay. A tensor
///   registered under several names is one parameter, under its first name. So is one assigned to
///   the weight of another Linear, Embedding or Conv (head->weight = table->weight). Parameters
///   that share memory otherwise, or in double precision, are errors.
/// - Buffers stay on every rank. Constants must be equal on all ranks, and forward() may not change
///   them. Floating ones are kept in fp32; the module sees them in the weights' dtype, as after
///   Module::to(dtype). Running statistics (running_mean, running_var, num_batches_tracked) need
///   ModuleOptions and fp32 weights. They advance once per micro-batch, also under gradient
///   checkpointing and in frozen layers.
/// - Errors: Error(kInvalidArgument) with the block's and the tensor's name, when the block is
///   built or its forward() violates a rule. Errors of LibTorch inside forward() keep their type
///   and get the block's name added.
template <typename Module>
ModelSpec from_module(const Module& module, LossFunction loss, const ModuleOptions& options = {}) {
  using M = detail::ModuleOf<Module>;
  static_assert(detail::IsModule<M>,
                "from_module: the module, of a class derived from torch::nn::Module, is given as a "
                "shared_ptr, a holder (TORCH_MODULE), a function that returns one of them, or "
                "with_values(function, module)");
  if constexpr (detail::IsModule<M>) {
    static_assert(
        detail::TakesOneTensor<M>,
        "from_module: the module's forward() must take one tensor and return one; for any "
        "other use from_callable(module, step) of tessera/model/callable.h");
    if constexpr (detail::TakesOneTensor<M>) {
      const auto callable = [](std::shared_ptr<M> made) {
        return detail::CallableModule{
            made,
            [made](const detail::Tensors& given, const MicroBatch&, const BlockContext&) {
              return detail::Tensors{made->forward(given.front())};
            },
            nullptr, /*sees_micro_batch=*/false};
      };
      return detail::model_of_one_block(detail::source_of(module, callable), std::move(loss),
                                        options, 1, 0);
    }
  }
}

/// A sequential module with one block per child and the loss in the last one (nullptr: a part for
/// chain()). Children take and return one tensor. Blocks are copies, as by from_module(). A tensor
/// that several children share (e.g. a repeated child) is one tied parameter.
ModelSpec from_sequential(std::shared_ptr<torch::nn::SequentialImpl> sequential, LossFunction loss,
                          const ModuleOptions& options = {});

/// from_sequential() for a holder, such as torch::nn::Sequential.
template <typename Holder>
requires requires(const Holder& holder) { holder.ptr(); }
ModelSpec from_sequential(const Holder& sequential, LossFunction loss,
                          const ModuleOptions& options = {}) {
  return from_sequential(sequential.ptr(), std::move(loss), options);
}

}  // namespace tessera
