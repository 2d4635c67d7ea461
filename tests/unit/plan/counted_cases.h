// SPDX-License-Identifier: MIT
#pragma once
// Operations whose allocations a plan counts, on real and on meta tensors.
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace tessera::testing {

using Tensors = std::vector<at::Tensor>;

struct CountedCase {
  std::string name;
  // Makes the inputs on a device. The returned function runs the operation on them and returns all
  // outputs; it may be called again.
  std::function<std::function<Tensors()>(at::Device)> prepare;
};

// In models' sizes: some that GPU kernels support, and some that they do not.
std::vector<CountedCase> counted_cases(at::ScalarType type);

// Memory of an operation.
struct Taken {
  std::vector<std::string> outputs;  // "Float [2, 3]"
  int64_t kept = 0, most = 0;        // kept: bytes of outputs; most: peak while it runs
  bool operator==(const Taken&) const = default;
};
std::vector<std::string> described(const Tensors& outputs);
// On meta tensors that stand for this kind of device.
Taken counted(const CountedCase& test, at::DeviceType type);

// Both results, for messages.
std::string beside(const CountedCase& test, const Taken& planned, const Taken& measured);

}  // namespace tessera::testing
