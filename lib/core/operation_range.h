// SPDX-License-Identifier: MIT
#pragma once
// Operations in LibTorch's profiler, with their work in the name: kernels launched directly have no
// shapes there.
#include <ATen/record_function.h>

#include <optional>
#include <string>
#include <string_view>

#include "tessera/core/not_copied.h"

namespace tessera {

// 0: unknown.
struct OperationWork {
  double flops = 0;  // of matrix products
  double bytes = 0;  // every operand read once, every result written once
};

struct NamedWork {
  std::string operation;
  bool own_code = false;  // on the CPU: computed by this library, not by LibTorch operators
  OperationWork work;
};

// "tessera::swiglu_forward bytes=4096"; "cpu::name" for an operation that this library computes on
// the CPU.
std::string range_name(std::string_view operation, const OperationWork& work);
// Empty for a name that range_name() did not make.
std::optional<NamedWork> parse_range_name(std::string_view name);

// The operation lasts until the range ends. Costs nanoseconds without a profiler; work() is called
// only with one.
class OperationRange : NotCopied {
 public:
  template <typename Fn>
  OperationRange(const char* operation, const Fn& work) : function_(at::RecordScope::FUNCTION) {
    if (function_.isActive()) begin(operation, work());
  }

 private:
  void begin(const char* operation, const OperationWork& work);

  at::RecordFunction function_;
};

}  // namespace tessera
