// SPDX-License-Identifier: MIT
#pragma once
// Values of the tensor constants and buffers of a directory's programs.
#include <ATen/core/Tensor.h>

#include <memory>
#include <string>

#include "tessera/checkpoint/safetensors.h"

namespace tessera::program {

class Constants {
 public:
  // path empty: there are none. Throws Error(kDataLoss).
  explicit Constants(const std::string& path);

  bool has(const std::string& name, at::ScalarType dtype, bool training) const;
  // On the CPU: of the program of this dtype and mode where it has a value of its own. Throws
  // Error(kDataLoss) with file and name.
  at::Tensor read(const std::string& name, at::ScalarType dtype, bool training) const;

 private:
  std::string stored_name(const std::string& name, at::ScalarType dtype, bool training) const;

  std::unique_ptr<SafetensorsFile> file_;
};

}  // namespace tessera::program
