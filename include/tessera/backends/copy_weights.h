// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Weights between a strategy and a plain torch::nn module.
#include <functional>
#include <string>

#include "tessera/backends/strategy.h"

namespace torch::nn {
class Module;
}

namespace tessera {

/// How copy_to() and copy_from() match names.
struct CopyOptions {
  /// What the module calls the strategy's parameter or buffer, such as ModelSpec::checkpoint_name.
  /// Null: "block.parameter" where the module has that name, else "parameter".
  std::function<std::string(const std::string& block, const std::string& parameter)> name = nullptr;
};

/// Writes every parameter of the strategy's model, whole, and its buffers into the module, in the
/// module's own dtype and on its device; modes and gradients stay. Collective: ranks that want no
/// copy give nullptr, e.g. all but rank 0. The model is visited twice, one block whole at a time
/// beside the module. Throws Error(kInvalidArgument), before anything is written, where the module
/// lacks a name, has it in another shape, or has parameters that the model has not.
void copy_to(Strategy& strategy, torch::nn::Module* module, const CopyOptions& options = {});

/// The inverse: the model's parameters and buffers become those of rank 0's module; other ranks'
/// modules are not looked at and may be nullptr. The optimizer's state stays, a gradient is
/// dropped. world: the ranks of the strategy's mesh. Collective. Throws Error(kInvalidArgument) on
/// all ranks as copy_to() does.
void copy_from(Strategy& strategy, const torch::nn::Module* module, Communicator& world,
               const CopyOptions& options = {});

}  // namespace tessera
