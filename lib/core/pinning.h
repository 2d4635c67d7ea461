// SPDX-License-Identifier: MIT
#pragma once
#include <cstddef>
#include <string>

namespace tessera {

// Page-locks memory for all GPUs; empty, or why it was refused.
std::string pin_pages(void* data, size_t bytes);
void unpin_pages(void* data);

}  // namespace tessera
