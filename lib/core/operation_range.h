// SPDX-License-Identifier: MIT
#pragma once
// Operations as LibTorch's profiler sees them, with what they compute and move in their names: what
// they launch themselves has no shape there.
#include <ATen/record_function.h>

#include <optional>
#include <string>
#include <string_view>

#include "tessera/core/not_copied.h"

namespace tessera {

// 0: not known.
struct OperationWork {
  double flops = 0;  // of matrix products
  double bytes = 0;  // every operand read once, every result written once
};

struct NamedWork {
  std::string operation;
  bool own_code = false;  // of the CPU: no operators of LibTorch do the work
  OperationWork work;
};

// "tessera::swiglu_forward bytes=4096". An operation "cpu::name" is one that our own code computes
// on the CPU.
std::string range_name(std::string_view operation, const OperationWork& work);
// Nothing for a name that range_name() did not make.
std::optional<NamedWork> parse_range_name(std::string_view name);

// The operation lasts until the range ends. Costs some nanoseconds while no profiler looks; work()
// is called while one does.
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
