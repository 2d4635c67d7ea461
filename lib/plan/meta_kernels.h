// SPDX-License-Identifier: MIT
#pragma once

namespace torch {
class Library;
}

namespace tessera {

// Registers meta kernels for LibTorch operations that blocks use and its C++ library lacks. They
// allocate as the CPU's do and compute nothing. Once per process.
void register_meta_kernels();
// Adds the kernels for layers of torch::nn.
void register_meta_kernels_of_layers(torch::Library& library);

}  // namespace tessera
