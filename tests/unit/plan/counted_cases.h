// SPDX-License-Identifier: MIT
#pragma once
// The operations whose allocations a plan counts, on tensors that are there and on such without
// memory.
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace tessera::testing {

using Tensors = std::vector<at::Tensor>;

struct CountedCase {
  std::string name;
  // Makes the inputs on a device. The function it returns runs the operation on them and returns
  // all that it gives; it may be called again.
  std::function<std::function<Tensors()>(at::Device)> prepare;
};

// In the sizes of the models: those that the kernels of GPUs take, and those that they leave.
std::vector<CountedCase> counted_cases(at::ScalarType type);

// What an operation takes.
struct Taken {
  std::vector<std::string> outputs;  // "Float [2, 3]"
  int64_t kept = 0, most = 0;        // bytes, by what it gives; while it runs
  bool operator==(const Taken&) const = default;
};
std::vector<std::string> described(const Tensors& outputs);
// Without memory, standing for this kind of device.
Taken counted(const CountedCase& test, at::DeviceType type);

// Both, for messages.
std::string beside(const CountedCase& test, const Taken& planned, const Taken& measured);

}  // namespace tessera::testing
