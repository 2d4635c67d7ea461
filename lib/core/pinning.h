// SPDX-License-Identifier: MIT
#pragma once
#include <cstddef>
#include <string>

namespace tessera {

// Page-locks memory for all GPUs; returns the reason for a failure, or "".
std::string pin_pages(void* data, size_t bytes);
void unpin_pages(void* data);

}  // namespace tessera
