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
  /// The module's name for a parameter or buffer of the strategy, such as
  /// ModelSpec::checkpoint_name. Null: "block.parameter" where the module has that name, else
  /// "parameter".
  std::function<std::string(const std::string& block, const std::string& parameter)> name = nullptr;
};

/// Copies all parameters, unsharded, and buffers of the strategy's model into the module, in the
/// module's dtype and on its device. Modes and gradients stay. Collective: ranks that want no copy
/// pass nullptr, e.g. all but rank 0. Visits the model twice, with one unsharded block at a time
/// beside the module. Throws Error(kInvalidArgument) before any write: a name is missing, a shape
/// differs, or the module has parameters that the model has not.
void copy_to(Strategy& strategy, torch::nn::Module* module, const CopyOptions& options = {});

/// The inverse of copy_to(): the model takes the parameters and buffers of rank 0's module. The
/// modules of other ranks are ignored and may be nullptr. The optimizer's state stays; a gradient
/// is dropped. world: the ranks of the strategy's mesh. Collective. Throws Error(kInvalidArgument)
/// on all ranks, for the reasons of copy_to().
void copy_from(Strategy& strategy, const torch::nn::Module* module, Communicator& world,
               const CopyOptions& options = {});

}  // namespace tessera
