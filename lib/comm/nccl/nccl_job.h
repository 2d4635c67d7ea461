// SPDX-License-Identifier: MIT
#pragma once
// State shared by the NCCL communicators of one job.
#include <ATen/core/Tensor.h>
#include <c10/cuda/CUDAStream.h>
#include <nccl.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "lib/comm/nccl/nccl_handle.h"
#include "tessera/comm/communicator.h"
#include "tessera/core/error.h"

namespace tessera::nccl {

struct Job {
  std::shared_ptr<const AbortSignal> signal;
  std::function<void(const std::string&)> abort;
  std::shared_ptr<OperationLog> log;
  ReportFailure report;
  std::function<void(const std::string& key, const std::string& value)> post;
  std::function<std::string(const std::string& key)> take;
  std::unique_ptr<Watch> watch;
  size_t least_copied = 0;  // bytes of a rank's part from which copies gather; 0: none do
};

inline ncclDataType_t nccl_type(at::ScalarType dtype) {
  switch (dtype) {
    case at::kFloat:
      return ncclFloat32;
    case at::kDouble:
      return ncclFloat64;
    case at::kHalf:
      return ncclFloat16;
    case at::kBFloat16:
      return ncclBfloat16;
    case at::kLong:
      return ncclInt64;
    case at::kInt:
      return ncclInt32;
    case at::kChar:
      return ncclInt8;
    default:
      return ncclUint8;
  }
}

// Keeps the tensors of an operation on a side stream. wait() orders the current stream after it,
// which makes reuse of the memory safe. Without wait(), the allocator is told of the side stream
// (recordStream).
class Kept {
 public:
  Kept(std::vector<at::Tensor> tensors, c10::cuda::CUDAStream stream)
      : tensors_(std::move(tensors)), stream_(stream) {}
  ~Kept() {
    for (const at::Tensor& tensor : tensors_) tensor.record_stream(stream_.unwrap());
  }
  Kept(const Kept&) = delete;
  Kept& operator=(const Kept&) = delete;
  void release() { tensors_.clear(); }
  const std::vector<at::Tensor>& tensors() const { return tensors_; }

 private:
  std::vector<at::Tensor> tensors_;
  c10::cuda::CUDAStream stream_;
};

}  // namespace tessera::nccl
