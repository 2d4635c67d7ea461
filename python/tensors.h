// SPDX-License-Identifier: MIT
#pragma once
// Arrays of Python (DLPack) as tensors, and back.
#include <ATen/core/Tensor.h>
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <string>

namespace tessera::python {

namespace nb = nanobind;

// A view of the array's memory, which it keeps alive; on the CPU, or on `device`. what:
// "input_ids". Called with Python's lock; the tensor may end without it. Throws
// Error(kInvalidArgument) for what has no __dlpack__, does not give its memory, lies on another
// device, or is of a dtype or strides that tensors do not have.
at::Tensor tensor_of(nb::handle array, at::Device device, const std::string& what);

// What numpy.from_dlpack() and torch.from_dlpack() take. tensor: fp32, contiguous, on the CPU.
using Array = nb::ndarray<nb::array_api, float, nb::device::cpu>;
Array array_of(const at::Tensor& tensor);

}  // namespace tessera::python
