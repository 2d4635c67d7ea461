// SPDX-License-Identifier: MIT
#pragma once
// A communicator that records its rank's operations: dtypes, bits and bytes.
#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/forwarding_communicator.hpp"

namespace tessera::test {

struct WireRecord {
  std::string operation;
  at::Tensor values;  // a copy of the input
  int ranks = 1;      // size of its communicator
};

using WireLog = std::shared_ptr<std::vector<WireRecord>>;

// Owns the log, which communicators split from it share. One log per rank.
class RecordingCommunicator final : public ForwardingCommunicator {
 public:
  RecordingCommunicator(std::unique_ptr<Communicator> inner, WireLog log)
      : ForwardingCommunicator(std::move(inner)), log_(std::move(log)) {}

  Work start(std::span<const Operation> operations) override {
    for (const Operation& each : operations) {
      if (each.kind == OperationKind::kRecv || each.kind == OperationKind::kBarrier) continue;
      const at::Tensor& given = each.input.defined() ? each.input : each.output;
      log_->push_back({name_of(each.kind), given.detach().clone(), inner_->size()});
    }
    return inner_->start(operations);
  }
  std::unique_ptr<Communicator> split(int color, int key) override {
    return std::make_unique<RecordingCommunicator>(inner_->split(color, key), log_);
  }

 private:
  WireLog log_;
};

}  // namespace tessera::test
