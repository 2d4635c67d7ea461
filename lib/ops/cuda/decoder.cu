// SPDX-License-Identifier: MIT
// SwiGLU and rotary embeddings, eight elements per thread.
#include "lib/ops/cuda/dispatch.cuh"
#include "lib/ops/cuda/largest.cuh"
#include "lib/ops/cuda/swiglu.cuh"

namespace tessera::ops::cuda {
namespace {

constexpr int kThreads = 256;

unsigned blocks_for(int64_t threads) { return unsigned((threads + kThreads - 1) / kThreads); }

__device__ __forceinline__ int64_t thread_index() {
  return int64_t(blockIdx.x) * kThreads + threadIdx.x;
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    swiglu_forward_kernel(const uint4* gate_up, uint4* output, int64_t count, int vectors,
                          float* largest) {
  const int64_t at = thread_index();
  uint32_t own = 0;
  if (at < count) {
    const int64_t gate_at = at + at / vectors * vectors;  // rows are twice as long
    float gate[8], up[8];
    unpack<T>(gate_up[gate_at], gate);
    unpack<T>(gate_up[gate_at + vectors], up);
#pragma unroll
    for (int j = 0; j < 8; ++j) up[j] *= gate[j] * sigmoid(gate[j]);
    output[at] = pack<T>(up);
    take_largest(own, up);
  }
  hand_largest<T>(own, largest);
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    swiglu_backward_kernel(const uint4* gradient, const uint4* gate_up, uint4* gate_up_gradient,
                           uint4* output, int64_t count, int vectors, float* largest) {
  const int64_t at = thread_index();
  uint32_t own = 0;
  if (at < count) {
    const int64_t gate_at = at + at / vectors * vectors;
    float dy[8], gate[8], up[8];
    unpack<T>(gradient[at], dy);
    unpack<T>(gate_up[gate_at], gate);
    unpack<T>(gate_up[gate_at + vectors], up);
#pragma unroll
    for (int j = 0; j < 8; ++j) dy[j] = swiglu_backward_of(dy[j], gate[j], up[j]);
    if (output) output[at] = pack<T>(dy);
    gate_up_gradient[gate_at] = pack<T>(gate);
    gate_up_gradient[gate_at + vectors] = pack<T>(up);
    take_largest(own, gate);
    take_largest(own, up);
  }
  hand_largest<T>(own, largest);
}

template <typename T>
__global__ void __launch_bounds__(kThreads) rotary_kernel(Rotation p) {
  const int vectors = p.d / 16;  // per half head
  const int64_t at = thread_index(), head = at / vectors, token = head / p.heads;
  if (token >= p.tokens) return;
  const int part = int(at % vectors);
  uint4* const first = reinterpret_cast<uint4*>(static_cast<T*>(p.x) + token * p.token_stride +
                                                head % p.heads * p.head_stride) +
                       part;
  const int64_t position = p.positions ? p.positions[token] : token % p.sequence;
  const int64_t table_at = position * (p.d / 2) + part * 8;
  float a[8], b[8];
  unpack<T>(first[0], a);
  unpack<T>(first[vectors], b);
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    const float c = p.cos[table_at + j], s = p.back ? -p.sin[table_at + j] : p.sin[table_at + j];
    const float turned = a[j] * c - b[j] * s;
    b[j] = b[j] * c + a[j] * s;
    a[j] = turned;
  }
  first[0] = pack<T>(a);
  first[vectors] = pack<T>(b);
}

}  // namespace

void swiglu_forward(Type type, const void* gate_up, void* output, int64_t rows, int n,
                    float* largest, cudaStream_t stream) {
  const int vectors = n / 8;
  with_16_bit_type(type, [&](auto tag) {
    swiglu_forward_kernel<typename decltype(tag)::type>
        <<<blocks_for(rows * vectors), kThreads, 0, stream>>>(static_cast<const uint4*>(gate_up),
                                                              static_cast<uint4*>(output),
                                                              rows * vectors, vectors, largest);
  });
}

void swiglu_backward(Type type, const void* gradient, const void* gate_up, void* gate_up_gradient,
                     void* output, int64_t rows, int n, float* largest, cudaStream_t stream) {
  const int vectors = n / 8;
  with_16_bit_type(type, [&](auto tag) {
    swiglu_backward_kernel<typename decltype(tag)::type>
        <<<blocks_for(rows * vectors), kThreads, 0, stream>>>(
            static_cast<const uint4*>(gradient), static_cast<const uint4*>(gate_up),
            static_cast<uint4*>(gate_up_gradient), static_cast<uint4*>(output), rows * vectors,
            vectors, largest);
  });
}

void rotary(Type type, const Rotation& arguments, cudaStream_t stream) {
  with_16_bit_type(type, [&](auto tag) {
    rotary_kernel<typename decltype(tag)::type>
        <<<blocks_for(arguments.tokens * arguments.heads * (arguments.d / 16)), kThreads, 0,
           stream>>>(arguments);
  });
}

}  // namespace tessera::ops::cuda
