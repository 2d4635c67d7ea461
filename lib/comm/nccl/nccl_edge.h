// SPDX-License-Identifier: MIT
#pragma once
// Point-to-point messages of one direction between two ranks. Each edge has a communicator and
// stream of its own, so it never waits for the other direction or a collective.
#include <ATen/core/Tensor.h>
#include <c10/cuda/CUDAStream.h>

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "lib/comm/nccl/nccl_handle.h"
#include "tessera/comm/communicator.h"
#include "tessera/core/error.h"

namespace tessera::nccl {

struct Job;

// Connects on a thread of its own at first use. Until then messages queue, and only wait() blocks
// the host.
class Edge : public std::enable_shared_from_this<Edge> {
 public:
  enum class Role { kSender, kReceiver };
  Edge(std::string key, Role role, at::Device device, std::shared_ptr<const Job> job);

  Work transfer(const at::Tensor& tensor, const LoggedCall& call);
  // Joins the connecting thread and closes the connection; call last. Two ranks finish their shared
  // edges in the same order.
  void finish();

 private:
  class Transfer;

  void connect();
  void launch(Transfer& transfer);
  void transmit(Handle& handle, const at::Tensor& tensor) const;

  const std::string key_;
  const Role role_;
  const at::Device device_;
  const std::shared_ptr<const Job> job_;
  const c10::cuda::CUDAStream stream_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool connected_ = false;
  std::optional<Error> error_;
  std::shared_ptr<Handle> handle_;
  std::deque<std::shared_ptr<Transfer>> queue_;
  std::thread thread_;
};

}  // namespace tessera::nccl
