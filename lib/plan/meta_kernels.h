// SPDX-License-Identifier: MIT
#pragma once

namespace torch {
class Library;
}

namespace tessera {

// Gives LibTorch's operations that blocks use, but which its C++ library cannot run without memory,
// kernels that do: they allocate what the CPU's allocate and compute nothing. Once a process.
void register_meta_kernels();
// Those of layers of torch::nn, to the library of the meta device.
void register_meta_kernels_of_layers(torch::Library& library);

}  // namespace tessera
