// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Lazy zeros: memory that is logically zero but not cleared. The first accumulation overwrites it,
/// which saves the clearing and the read. Registered by address, process-wide; all functions are
/// thread-safe. Zeros are written on the current stream.
///
/// The registry is process-wide, not part of BlockContext: operations and blocks add to gradients
/// inside autograd's backward, where they know the tensor alone. Without it a step writes and reads
/// every gradient once more: for bloom-560m in bf16 2.2 GB, 0.8 ms at an H100's 2.7 TB/s.
#include <ATen/core/Tensor.h>

#include <vector>

namespace tessera {

/// Declares contiguous tensors lazily zero; replaces earlier declarations that overlap them. Keeps
/// their memory alive until they are taken, cleared or forgotten. Meta tensors are zeroed at once,
/// for ledgers.
void declare_lazy_zero(const std::vector<at::Tensor>& tensors);
/// Writes zeros to those tensors that are still lazily zero as a whole.
void clear_lazy_zero(const std::vector<at::Tensor>& tensors);
/// Ends the lazy zeros of these tensors without writing anything.
void discard_lazy_zero(const std::vector<at::Tensor>& tensors);

/// Returns true if x was lazily zero: one declared tensor, or several adjacent ones. The caller
/// then overwrites all of x. Otherwise clears the parts of x that were lazily zero. Either way x no
/// longer is.
bool consume_lazy_zero(const at::Tensor& x);
/// Clears the parts of x that are lazily zero; call it before adding to x.
void materialize_lazy_zero(const at::Tensor& x);

}  // namespace tessera
