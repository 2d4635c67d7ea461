// SPDX-License-Identifier: MIT
#pragma once
// Properties of a torch module that follow from its types.

namespace torch::nn {
class Module;
}

namespace tessera {

// Properties of a module; a module of unknown type has all of them.
struct ModuleTraits {
  bool draws_in_training = false;
  bool draws_in_evaluation = false;
  bool writes_input = false;
};
ModuleTraits traits_of(const torch::nn::Module& module);

}  // namespace tessera
