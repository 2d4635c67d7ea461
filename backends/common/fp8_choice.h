// SPDX-License-Identifier: MIT
#pragma once
// Choice of the linear layers that multiply in 8 bits (Fp8::kAuto).
#include "tessera/backends/parallel_config.h"
#include "tessera/comm/communicator.h"
#include "tessera/model/model_spec.h"
#include "tessera/ops/fp8.h"

namespace tessera {

// Seconds of a decoder block's forward and backward.
struct Fp8Times {
  double off = 0;                           // all products in the compute dtype
  double qkv = 0, o = 0, up = 0, down = 0;  // with this layer in 8 bits
};

// The layers that save at least a hundredth of the block's time, which is more than the noise.
Fp8Layers fastest_fp8_layers(const Fp8Times& times);

// Times the model's commonest block that takes 8 bits, on comm.device() in this dtype, with one
// scale a matrix and with the casts of every operand. Builds the blocks up to that one. Zero
// without such a block. Collective: the slowest rank's times, equal on all.
Fp8Times measure_fp8(const ModelSpec& model, const BuildContext& context, at::ScalarType dtype,
                     const MicroBatch& micro_batch, Communicator& comm);

// The two together; none on CPUs, which emulate these products. Call it once, before
// make_strategy().
Fp8Layers measure_fp8_layers(const ModelSpec& model, const BuildContext& context,
                             at::ScalarType dtype, const MicroBatch& micro_batch,
                             Communicator& comm);

// What Fp8::kAuto becomes.
void use_fp8_layers(const Fp8Layers& layers, PrecisionConfig& precision);

}  // namespace tessera
