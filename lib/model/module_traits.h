// SPDX-License-Identifier: MIT
#pragma once
// What can be told of a torch module from the types it is made of.

namespace torch::nn {
class Module;
}

namespace tessera {

// Of modules of unknown type everything is assumed.
struct ModuleTraits {
  bool draws_in_training = false;
  bool draws_in_evaluation = false;
  bool writes_input = false;
};
ModuleTraits traits_of(const torch::nn::Module& module);

}  // namespace tessera
