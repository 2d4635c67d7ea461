// SPDX-License-Identifier: MIT
#pragma once
// What the operations of a thread compute and move, by the phase and the block that they are for.
#include <ATen/record_function.h>

#include <cstdint>
#include <vector>

#include "lib/core/operation_range.h"
#include "tessera/plan/dry_step.h"

namespace tessera {

// Counts while it lives, on one thread. [Note: what is counted once]
// An operation of tessera's says its work; what it calls to do it is not looked at. Outside of them
// LibTorch's products are counted where all others end: mm, bmm and convolution.
class StepWork : NotCopied {
 public:
  StepWork();
  ~StepWork();

  void clear() { work_.clear(); }
  const std::vector<LedgerWork>& ledger() const { return work_; }

 private:
  struct Inside;  // an operation of tessera's
  static std::unique_ptr<at::ObserverContext> begin(const at::RecordFunction& function);
  static void end(const at::RecordFunction& function, at::ObserverContext* context);
  void add(const OperationWork& work);

  StepWork* const outer_;
  const at::CallbackHandle handle_;
  int64_t depth_ = 0;  // of tessera's operations
  std::vector<LedgerWork> work_;
};

}  // namespace tessera
