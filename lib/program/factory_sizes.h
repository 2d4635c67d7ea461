// SPDX-License-Identifier: MIT
#pragma once
// Bounds for operators whose output's extents are given as numbers.
#include <ATen/core/ivalue.h>

#include <cstdint>
#include <string>
#include <vector>

#include "lib/program/call.h"

namespace tessera::program {

// Limit for one output.
constexpr int64_t kMostElements = int64_t{1} << 33;

// Throws Error(kDataLoss) when the operator would make a larger tensor of these arguments, or one
// with a negative extent.
void check_elements(const c10::OperatorHandle& handle, const std::vector<c10::IValue>& arguments);

// Throws Error(kDataLoss) when a result of the operator would have more elements, by its shapes on
// the meta device. Results whose shapes depend on values are left: they are no larger than the
// arguments.
void check_results(const c10::OperatorHandle& handle, const std::vector<c10::IValue>& arguments,
                   int64_t most);

}  // namespace tessera::program
