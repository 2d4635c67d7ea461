// SPDX-License-Identifier: MIT
#pragma once
// LibTorch computes square roots, exponentials and the like of CPU tensors by MKL's vector
// functions. MKL before 2025.0 looks for a function's kernel at its first call, and a thread whose
// first call meets another's may get a kernel of 11 bits for this call
// (https://github.com/pytorch/pytorch/issues/188792). Ranks that are threads, and threads of one
// operation, call them at the same time.

namespace tessera {

// Calls each of these functions once, if that was not done: before threads of this process do.
void resolve_vector_math();
bool is_vector_math_resolved();

}  // namespace tessera
