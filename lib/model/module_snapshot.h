// SPDX-License-Identifier: MIT
#pragma once
// A user's module beside what its clone() makes.
#include <memory>
#include <string>
#include <vector>

#include "lib/model/module_tensors.h"

namespace tessera {

// What a module holds before it is cloned. clone() leaves out children that are not Cloneable, and
// reset() may register tensors and layers that the module itself has.
class ModuleSnapshot {
 public:
  // maker: what makes the clone, for messages. root: the module of which this one is a part, or
  // itself. Both outlive the snapshot.
  ModuleSnapshot(std::string block, std::string maker, const torch::nn::Module& module,
                 const torch::nn::Module& root);
  // Makes the clone a copy: values, ties, gradient flags and modes are the module's, the tensors
  // its own. Throws Error(kInvalidArgument) with the first tensor or layer that cannot be.
  void complete(torch::nn::Module& clone) const;

 private:
  struct Entry {
    NamedTensor used;
    at::Tensor registered;  // under the name
    at::Tensor memory;      // a second handle of what `used` holds
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
