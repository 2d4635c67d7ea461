// SPDX-License-Identifier: MIT
#pragma once
// FLOPs and bytes of a thread's operations, by phase and block.
#include <ATen/record_function.h>

#include <cstdint>
#include <vector>

#include "lib/core/operation_range.h"
#include "tessera/plan/dry_step.h"

namespace tessera {

// Counts on one thread while it lives.
// [Note: what is counted once] This library's operations report their own work; LibTorch operators
// that they call are not counted. Elsewhere LibTorch's products are counted where all others end:
// mm, bmm and convolution.
class StepWork : NotCopied {
 public:
  StepWork();
  ~StepWork();

  void clear() { work_.clear(); }
  const std::vector<LedgerWork>& ledger() const { return work_; }

 private:
  struct Inside;  // inside an operation of this library
  static std::unique_ptr<at::ObserverContext> begin(const at::RecordFunction& function);
  static void end(const at::RecordFunction& function, at::ObserverContext* context);
  void add(const OperationWork& work);

  StepWork* const outer_;
  const at::CallbackHandle handle_;
  int64_t depth_ = 0;  // nesting of this library's operations
  std::vector<LedgerWork> work_;
};

}  // namespace tessera
