// SPDX-License-Identifier: MIT
#pragma once
// Transfers of tensors whose shape and dtype only the sender knows.
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "tessera/comm/communicator.h"

namespace tessera {

constexpr size_t kMostDims = 14;  // limit of a described tensor

// Header sent ahead of a tensor: its shape and dtype, and free text of the sender.
struct TensorForm {
  std::vector<int64_t> sizes;
  at::ScalarType dtype = at::ScalarType::Undefined;  // Undefined: no tensor
  std::string words;
};

// The form without its words as a message: int64 [n] on the device.
at::Tensor header_of(const TensorForm& form, at::Device device);
at::Tensor empty_header(at::Device device);
TensorForm read_header(const at::Tensor& header);  // synchronises the host

// The root's form on every rank. Collective.
TensorForm broadcast_form(Communicator& comm, int root, const TensorForm& mine);

// The root's tensor, which may be undefined, and its words on every rank. Only the root passes
// them. Collective.
struct DescribedTensor {
  std::string words;
  at::Tensor tensor;
};
DescribedTensor broadcast_described(Communicator& comm, int root, const DescribedTensor& mine = {});

}  // namespace tessera
