// SPDX-License-Identifier: MIT
#pragma once

namespace tessera {

// Gives LibTorch's operations that blocks use, but which its C++ library cannot run without memory,
// kernels that do: they allocate what the CPU's allocate and compute nothing. Once a process.
void register_meta_kernels();

}  // namespace tessera
