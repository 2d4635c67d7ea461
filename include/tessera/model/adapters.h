// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Makes any torch::nn module a model that every strategy can train.
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

/// (output of the module in fp32, micro-batch) -> SUM of the loss over the micro-batch's targets: a
/// scalar, or with ModuleOptions::counters a 1-D tensor whose further elements are counters as
/// Block describes them. Divide by nothing: strategies divide by the sum of
/// MicroBatch::target_count. ModuleOptions::reduction declares another reduction. The labels are
/// fp32 where they are floating. Error(kInvalidArgument) refuses, where it can be told, what is no
/// such sum:
///   any other shape;
///   a mean, which stays the same when every row is there twice. A loss that is divided by
///   something is called once more to find out, without gradients. One that is of a whole
///   micro-batch has one target: set target_count to 1; LibTorch's class weights, by whose sum it
///   divides; mse_loss and its kin over several numbers a row where the rows are counted as
///   targets.
///
/// It is made of a function of (const at::Tensor&, const MicroBatch&), or of one that takes a const
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
                        const BlockContext& context) const {
    return call_(output, micro_batch, context);
  }
  explicit operator bool() const { return call_ != nullptr; }
  bool operator==(std::nullptr_t) const { return call_ == nullptr; }

 private:
  std::function<at::Tensor(const at::Tensor&, const MicroBatch&, const BlockContext&)> call_;
};

/// What the adapters cannot see for themselves.
struct ModuleOptions {
  /// Every data rank computes running statistics (of BatchNorm, InstanceNorm) from its own rows:
  /// the rank whose values are the model's. Without it modules that have them are refused.
  std::optional<int> running_statistics_of_rank = std::nullopt;
  /// No module looks at any position but its own, so that several rows may lie in a sequence
  /// (MicroBatch::packed, which modules never see).
  bool takes_packed_rows = false;
  /// How many counters the loss returns behind the sum, or as LossResult::counters.
  int counters = 0;
  /// What the loss returns. kMean: the micro-batch's mean, which counts target_count times; refused
  /// of LibTorch's class weights, whose sum is to be LossResult::divisor. kNone: no counters
  /// behind.
  LossReduction reduction = LossReduction::kSum;
};

namespace detail {

using Tensors = std::vector<at::Tensor>;

/// torch::nn::Module has no virtual forward: the module and how to call it.
struct CallableModule {
  std::shared_ptr<torch::nn::Module> module;
  /// given: BlockBuilder::takes tensors; of a first block the micro-batch's input_ids, or none.
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
  /// What make() copies; null when it makes a module anew.
  std::shared_ptr<const torch::nn::Module> original = nullptr;
  const char* maker = "clone()";  ///< what users call make()
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

/// The class of the module that is given as this; void: as none of what is known.
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

/// callable: makes a CallableModule of a pointer to the module.
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

/// For a module without clone(): make() makes one of its class, which gets the values, ties and
/// modes that `module` has at attach().
template <typename Make, typename Module>
auto with_values(Make make, Module module) {
  return detail::MadeWithValues<Make, Module>{std::move(make), std::move(module)};
}

/// The module as one block. It is given as
///   a function that makes it, e.g. [] { return std::make_shared<Net>(784, 10); }: called once per
///   rank with the default generators seeded from the run's seed, so that every rank draws the same
///   weights; or with_values(function, module); or the module itself (shared_ptr or holder; it must
///   derive from torch::nn::Cloneable): every rank trains a copy of it as it is at attach().
///   Values, ties and modes are copied also where clone() leaves them out, as it does with children
///   that are not Cloneable. The module itself stays as it is.
/// Either way every data rank starts with the values of the first one, in tensors of its own. A
/// tensor that a copy would share with the module is refused. So is one that the function returns
/// twice, or that several ranks return.
///
/// Input and output. forward() takes micro_batch.input_ids (cast to the weights' dtype when it is
/// floating) and returns one tensor. It may change its input in place; the micro-batch's own
/// tensors stay as they are. Modes. Modules are in training mode where context.training is set,
/// else in eval mode. Those that are in eval mode inside a module in training mode when the block
/// is built (a BatchNorm whose statistics are to stay) remain so. Random numbers. What forward()
/// and the loss draw from LibTorch's default generators (dropout) depends on context.seed and
/// the block's place: the same on every layout of ranks, and again when the block runs again for
/// backward. The generators' own states are put back. They belong to the process, so on the CPU
/// ranks that are threads take turns in blocks that may draw: all but those made of LibTorch's own
/// layers without randomness. So forward() must not wait for other ranks. Parameters. One that
/// needs no gradient is frozen. Those with two or more dimensions decay. A tensor registered under
/// several names is one parameter, under its first name; so is one that was assigned to the weight
/// of another Linear, Embedding or Conv (head->weight = table->weight). Parameters that share
/// memory in another way are refused. Buffers stay on every rank. Constants must be equal on all
/// ranks; forward() may not change them. Floating ones are kept in fp32; the module sees them in
/// the dtype of the weights, as after Module::to(dtype). Running statistics (buffers named
/// running_mean, running_var, num_batches_tracked) need ModuleOptions and fp32 weights; they
/// advance once a micro-batch, also under gradient checkpointing and in frozen layers. Parameters
/// in double precision are refused. Refusals are
/// Error(kInvalidArgument) with the block's and the tensor's name: when the block is built, or when
/// its forward() does what it may not. Errors of LibTorch inside forward() get the block's name
/// added and keep their type.
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

/// One block per child, the loss in the last one (nullptr: a part for chain()); children take and
/// return one tensor. Otherwise as from_module(module): built blocks are copies. A tensor that
/// several children have (a child that stands there twice) is one parameter, tied.
ModelSpec from_sequential(std::shared_ptr<torch::nn::SequentialImpl> sequential, LossFunction loss,
                          const ModuleOptions& options = {});

/// The same for a holder, such as torch::nn::Sequential.
template <typename Holder>
requires requires(const Holder& holder) { holder.ptr(); }
ModelSpec from_sequential(const Holder& sequential, LossFunction loss,
                          const ModuleOptions& options = {}) {
  return from_sequential(sequential.ptr(), std::move(loss), options);
}

}  // namespace tessera
