// SPDX-License-Identifier: MIT
#pragma once
// A communicator that writes down what its rank hands to the wire: dtypes, bits and bytes.
#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/forwarding_communicator.hpp"

namespace tessera::test {

struct WireRecord {
  std::string operation;
  at::Tensor values;  // a copy of what was handed over
  int ranks = 1;      // of its communicator
};

using WireLog = std::shared_ptr<std::vector<WireRecord>>;

// Owns what it records; communicators split from it write into the same log. One rank, one log.
class RecordingCommunicator final : public ForwardingCommunicator {
 public:
  RecordingCommunicator(std::unique_ptr<Communicator> inner, WireLog log)
      : ForwardingCommunicator(std::move(inner)), log_(std::move(log)) {}

  void barrier() override { inner_->barrier(); }
  void begin_group() override { inner_->begin_group(); }
  Work end_group() override { return inner_->end_group(); }

  Work all_reduce(const at::Tensor& tensor, ReduceOp op) override {
    record("all_reduce", tensor);
    return inner_->all_reduce(tensor, op);
  }
  Work all_gather(const at::Tensor& output, const at::Tensor& input) override {
    record("all_gather", input);
    return inner_->all_gather(output, input);
  }
  Work reduce_scatter(const at::Tensor& output, const at::Tensor& input, ReduceOp op) override {
    record("reduce_scatter", input);
    return inner_->reduce_scatter(output, input, op);
  }
  Work broadcast(const at::Tensor& tensor, int root) override {
    record("broadcast", tensor);
    return inner_->broadcast(tensor, root);
  }
  Work send(const at::Tensor& tensor, int destination) override {
    record("send", tensor);
    return inner_->send(tensor, destination);
  }
  Work recv(const at::Tensor& tensor, int source) override { return inner_->recv(tensor, source); }
  std::unique_ptr<Communicator> split(int color, int key) override {
    return std::make_unique<RecordingCommunicator>(inner_->split(color, key), log_);
  }

 private:
  void record(const char* operation, const at::Tensor& tensor) {
    log_->push_back({operation, tensor.detach().clone(), inner_->size()});
  }

  WireLog log_;
};

}  // namespace tessera::test
