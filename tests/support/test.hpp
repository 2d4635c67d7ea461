#pragma once
// Catch2 under either of its major versions, behind LibTorch's logging: both have a CHECK, and the
// later one holds.
#include <c10/util/Logging.h>

#if __has_include(<catch2/catch_all.hpp>)
#include <catch2/catch_all.hpp>
using Catch::Approx;
#else
#include <catch2/catch.hpp>
#endif
