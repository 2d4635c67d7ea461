// SPDX-License-Identifier: MIT
#pragma once
// Completion of a user's cloned module.
#include <memory>
#include <string>
#include <vector>

#include "lib/model/module_tensors.h"

namespace tessera {

// State of a module before clone(). clone() omits children that are not Cloneable, and reset() may
// register tensors and layers that the module has itself.
class ModuleSnapshot {
 public:
  // maker: name of the function that clones, in messages. root: the module that contains this one,
  // or itself. Both modules outlive the snapshot.
  ModuleSnapshot(std::string block, std::string maker, const torch::nn::Module& module,
                 const torch::nn::Module& root);
  // Completes the clone: copies values, ties, gradient flags and modes into its own tensors. Throws
  // Error(kInvalidArgument) with the first tensor or layer for which that fails.
  void complete(torch::nn::Module& clone) const;

 private:
  struct Entry {
    NamedTensor used;
    at::Tensor registered;  // under that name
    at::Tensor memory;      // a second handle of `used`'s memory
    bool requires_grad, buffer;

    std::string text() const;
  };
  void restore() const;
  void compare(torch::nn::Module& clone) const;
  void part_pretrained(torch::nn::Module& clone) const;
  void compare_layers(const torch::nn::Module& clone) const;
  void copy_values(torch::nn::Module& clone) const;
  template <typename... Parts>
  [[noreturn]] void refuse(const Parts&... parts) const;

  std::string block_, maker_;
  const torch::nn::Module& module_;
  std::vector<Entry> entries_;
};

}  // namespace tessera
