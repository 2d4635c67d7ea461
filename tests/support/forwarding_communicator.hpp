// SPDX-License-Identifier: MIT
#pragma once
// Base of communicators that wrap another one.
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "tessera/comm/communicator.h"

namespace tessera::test {

class ForwardingCommunicator : public Communicator {
 public:
  // inner must outlive this, or is owned.
  explicit ForwardingCommunicator(Communicator& inner) : inner_(&inner) {}
  explicit ForwardingCommunicator(std::unique_ptr<Communicator> inner)
      : owned_(std::move(inner)), inner_(owned_.get()) {}

  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  at::Device device() const override { return inner_->device(); }
  std::string transport() const override { return inner_->transport(); }
  int64_t bytes_sent() const override { return inner_->bytes_sent(); }
  void abort(const std::string& reason) override { inner_->abort(reason); }
  Work start(std::span<const Operation> operations) override { return inner_->start(operations); }

 private:
  const std::unique_ptr<Communicator> owned_;

 protected:
  Communicator* const inner_;
};

}  // namespace tessera::test
