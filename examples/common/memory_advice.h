#pragma once
// What to tell a user whose run does not fit.
#include <cstdint>
#include <string>

#include "examples/common/prepare.h"

namespace tessera::programs {

// Whether the exception means that host or device memory ran out.
bool is_out_of_memory(const std::exception& error);

// "One rank needs about ...: parameters ..., gradients ...", by formula.
std::string memory_need(const Prepared& run, int64_t ranks);

// Throws Error(kResourceExhausted) when parameters, gradients and optimizer of this host's ranks
// alone exceed the memory that the kernel calls available; without this the kernel would kill the
// ranks one by one.
void check_host_memory(const Prepared& run, int64_t ranks, int64_t ranks_on_host);

// The same after the fact, and the three flags that would save most, with the bytes each
// saves. reason is the allocator's own message.
std::string memory_advice(const Prepared& run, int64_t ranks, const std::string& reason);

std::string mebibytes(double bytes);  // "123 MiB"

}  // namespace tessera::programs
