// SPDX-License-Identifier: MIT
#pragma once
// Kernels of a GPU, or operators of the CPU, by what they take of a step.
#include <optional>
#include <string>
#include <vector>

#include "lib/core/operation_range.h"

namespace tessera::bench {

// One launch of a kernel, or one run of an operator without what it calls.
struct KernelCall {
  std::string name;
  std::string operation;  // of ours that it belongs to; empty: none
  double seconds = 0;
  OperationWork work;
};

// What the device reaches at best; 0: not known.
struct Ceilings {
  double flops_per_s = 0, bytes_per_s = 0;
};

// Of one step. OperationWork is known where that of every call is.
struct KernelRow {
  std::string name, operation;
  double calls = 0, seconds = 0, share = 0;
  std::optional<double> flops, bytes;
  std::optional<double> of_ceiling;  // the larger of both shares
};

// "void at::native::fill_kernel<4, float>(int)" -> "fill_kernel". Where the arguments of a template
// alone say what a kernel does, its first one stays.
std::string short_name(const std::string& kernel);

// By name and operation, the longest first; what takes less than least_share of a step is in a last
// row "others".
std::vector<KernelRow> kernel_rows(const std::vector<KernelCall>& calls, int steps, double step_s,
                                   const Ceilings& ceilings, double least_share = 0.01);

}  // namespace tessera::bench
