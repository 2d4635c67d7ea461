// SPDX-License-Identifier: MIT
#pragma once
// Conversion between Python arrays (DLPack) and tensors.
#include <ATen/core/Tensor.h>
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <string>

namespace tessera::python {

namespace nb = nanobind;

// A view of the array's memory, which it keeps alive; on the CPU or `device`. what: name in
// messages, such as "input_ids". Call it with the GIL; the tensor may be freed without it. Throws
// Error(kInvalidArgument) without __dlpack__, if the export fails, and for another device or an
// unsupported dtype or stride.
at::Tensor tensor_of(nb::handle array, at::Device device, const std::string& what);

// Array for numpy.from_dlpack() and torch.from_dlpack(). tensor: fp32, contiguous, on the CPU.
using Array = nb::ndarray<nb::array_api, float, nb::device::cpu>;
Array array_of(const at::Tensor& tensor);

// torch, imported. what: for the message where it is not installed, such as "losses of one's own".
nb::module_ torch_module(const char* what);

// Tensor of torch, which must be installed, on the same memory.
nb::object torch_tensor_of(const at::Tensor& tensor);

}  // namespace tessera::python
