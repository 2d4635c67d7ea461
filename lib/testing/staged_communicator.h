// SPDX-License-Identifier: MIT
#pragma once
// Communicator for in-process ranks that share a GPU: operations go through host memory.
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "tessera/comm/communicator.h"

namespace tessera::testing {

// An operation starts when the current stream has reached it, and ends in wait(); the host waits
// for both.
class StagedCommunicator final : public Communicator {
 public:
  // inner: for CPU tensors; must outlive this.
  StagedCommunicator(Communicator& inner, at::Device device) : inner_(&inner), device_(device) {}
  explicit StagedCommunicator(std::unique_ptr<Communicator> inner, at::Device device)
      : StagedCommunicator(*inner, device) {
    owned_ = std::move(inner);
  }

  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  at::Device device() const override { return device_; }
  std::string transport() const override { return inner_->transport(); }
  int64_t bytes_sent() const override { return inner_->bytes_sent(); }
  void abort(const std::string& reason) override { inner_->abort(reason); }

  Work start(std::span<const Operation> operations) override;
  std::unique_ptr<Communicator> split(int color, int key) override;

 private:
  class Staged;

  std::unique_ptr<Communicator> owned_;
  Communicator* inner_;
  at::Device device_;
};

}  // namespace tessera::testing
