// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Products in 8 bits (docs/concepts/fp8.md).

namespace tessera {

/// Scales of the products of decoder blocks' linear layers in training passes. kOff: these products
/// are in the compute dtype. kTensorwise: 8 bits, one scale a matrix. kRowwise: 8 bits, one scale a
/// row of the left and a column of the right matrix.
enum class Fp8 { kOff, kTensorwise, kRowwise };

}  // namespace tessera
