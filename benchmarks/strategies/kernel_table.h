// SPDX-License-Identifier: MIT
#pragma once
// Table of a step's GPU kernels, or CPU operators, by time.
#include <optional>
#include <string>
#include <vector>

#include "lib/core/operation_range.h"

namespace tessera::bench {

// One launch of a kernel, or one run of an operator without its callees.
struct KernelCall {
  std::string name;
  std::string operation;  // tessera operation that issued it; empty: none
  double seconds = 0;
  OperationWork work;
};

// Highest rates of the device; 0: unknown.
struct Ceilings {
  double flops_per_s = 0, bytes_per_s = 0;
};

// Per step. OperationWork is known if every call's is.
struct KernelRow {
  std::string name, operation;
  double calls = 0, seconds = 0, share = 0;
  std::optional<double> flops, bytes;
  std::optional<double> of_ceiling;  // the larger of both shares
};

// Short name: "void at::native::fill_kernel<4, float>(int)" -> "fill_kernel". If only a template's
// arguments identify a kernel, the first one stays.
std::string short_name(const std::string& kernel);

// Rows by name and operation, the longest first; rows below least_share of a step form a last row
// "others".
std::vector<KernelRow> kernel_rows(const std::vector<KernelCall>& calls, int steps, double step_s,
                                   const Ceilings& ceilings, double least_share = 0.01);

}  // namespace tessera::bench
