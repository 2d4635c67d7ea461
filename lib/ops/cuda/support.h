// SPDX-License-Identifier: MIT
#pragma once
// Shared by the wrappers: which tensors the kernels take, and launch errors.
#include <ATen/ATen.h>
#include <ATen/cuda/CUDAContext.h>
#include <ATen/cuda/EmptyTensor.h>

#include <cstdint>

#include "lib/ops/cuda/launch.h"
#include "tessera/core/error.h"

namespace tessera::ops::cuda {

// As at::empty() and at::empty_like(), without the dispatcher's equal host time.
inline at::Tensor empty(at::IntArrayRef shape, const at::Tensor& like, at::ScalarType type) {
  return at::Tensor(at::detail::empty_cuda(shape, like.options().dtype(type)));
}
inline at::Tensor empty_as(const at::Tensor& x) { return empty(x.sizes(), x, x.scalar_type()); }

inline bool is_16_bit(const at::Tensor& x) {
  return x.scalar_type() == at::kBFloat16 || x.scalar_type() == at::kHalf;
}

inline Type type_of(const at::Tensor& x) {
  switch (x.scalar_type()) {
    case at::kBFloat16:
      return Type::kBfloat16;
    case at::kHalf:
      return Type::kHalf;
    default:
      return Type::kFloat;
  }
}

inline bool is_aligned(const at::Tensor& x) {
  return reinterpret_cast<uintptr_t>(x.data_ptr()) % 16 == 0;
}

// True for contiguous, 16-byte aligned tensors of the given 16-bit type; undefined tensors pass.
inline bool fits(at::ScalarType type, std::initializer_list<at::Tensor> tensors) {
  for (const at::Tensor& x : tensors) {
    if (x.defined() && (x.scalar_type() != type || !x.is_contiguous() || !is_aligned(x)))
      return false;
  }
  return type == at::kBFloat16 || type == at::kHalf;
}

inline int64_t row_count(const at::Tensor& x) { return x.size(-1) ? x.numel() / x.size(-1) : 0; }

inline cudaStream_t stream() { return at::cuda::getCurrentCUDAStream(); }
// True while the stream is captured into a graph.
inline bool is_captured(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  cudaStreamIsCapturing(stream, &status);
  return status != cudaStreamCaptureStatusNone;
}

inline void check_launch(const char* kernel) {
  const cudaError_t error = cudaGetLastError();
  check(error == cudaSuccess, ErrorCode::kInternal, "CUDA: launching ", kernel,
        " failed: ", cudaGetErrorString(error), ".");
}

// Memory for largest magnitudes [rows, 1], zeros, for kernels; null: not wanted.
inline float* zeroed(at::Tensor* largest, const at::Tensor& like, int64_t rows = 1) {
  if (largest == nullptr) return nullptr;
  *largest = empty({rows, 1}, like, at::kFloat);
  cudaMemsetAsync(largest->data_ptr(), 0, largest->nbytes(), stream());
  return static_cast<float*>(largest->data_ptr());
}

inline void* data_or_null(const at::Tensor& x) { return x.defined() ? x.data_ptr() : nullptr; }

}  // namespace tessera::ops::cuda
