// SPDX-License-Identifier: MIT
#pragma once
// Checks of arguments with which an operator would end the process, fill the host's memory or read
// memory of others. LibTorch does not check them.
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>

#include <cstdint>
#include <vector>

namespace tessera::program {

// Limit for the members of one list.
constexpr int64_t kMostPieces = int64_t{1} << 16;

// chunk(), split(), tensor_split(), unbind(): throws Error(kDataLoss) above kMostPieces pieces.
void check_pieces(const c10::OperatorHandle& handle, const std::vector<c10::IValue>& arguments);

// div() of integers on the CPU: throws Error(kInvalidArgument) for the least integer divided by -1
// and truncated, which is a trap of the processor.
void check_division(const std::vector<c10::IValue>& arguments);

// _grouped_mm(): ends of groups do not decrease and lie in the tensor. Throws
// Error(kInvalidArgument) on the CPU. A GPU checks them without a wait of the host, and a wrong end
// stops it by an assertion before the product.
void check_groups(const std::vector<c10::IValue>& arguments);
void check_ends(const at::Tensor& ends, int64_t extent);

}  // namespace tessera::program
