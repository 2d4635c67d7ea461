#pragma once
// What to tell a user whose run does not fit.
#include <cstdint>
#include <string>

#include "examples/common/prepare.h"

namespace tessera::programs {

// Whether the exception means that host or device memory ran out.
bool is_out_of_memory(const std::exception& error);

// Memory of one rank by category, and the three flags that would save most, with the bytes each
// saves. reason is the allocator's own message.
std::string memory_advice(const Prepared& run, int64_t ranks, const std::string& reason);

std::string mebibytes(double bytes);  // "123 MiB"

}  // namespace tessera::programs
