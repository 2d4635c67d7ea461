// SPDX-License-Identifier: MIT
#pragma once
// Tensors of which only the rank that gives them knows the form.
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "tessera/comm/communicator.h"

namespace tessera {

constexpr size_t kMostDims = 14;  // of a tensor that is described

// What goes ahead of a tensor: its form, and words of the giver's own.
struct TensorForm {
  std::vector<int64_t> sizes;
  at::ScalarType dtype = at::ScalarType::Undefined;  // there is no tensor
  std::string words;
};

// The form but for its words, as a message: int64 [n] on the device.
at::Tensor header_of(const TensorForm& form, at::Device device);
at::Tensor empty_header(at::Device device);
TensorForm read_header(const at::Tensor& header);  // the host waits for it

// The root's form on every rank. Collective.
TensorForm broadcast_form(Communicator& comm, int root, const TensorForm& mine);

// The root's tensor, which may be undefined, and its words, on every rank; others give nothing.
// Collective.
struct DescribedTensor {
  std::string words;
  at::Tensor tensor;
};
DescribedTensor broadcast_described(Communicator& comm, int root, const DescribedTensor& mine = {});

}  // namespace tessera
