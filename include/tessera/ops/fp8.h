// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Products in 8 bits (docs/concepts/fp8.md).
#include <string>

namespace tessera {

/// Scales of the products of decoder blocks' linear layers in training passes. kOff: these products
/// are in the compute dtype. kTensorwise: 8 bits, one scale a matrix. kRowwise: 8 bits, one scale a
/// row of the left and a column of the right matrix. kAuto: a program measures and takes
/// kTensorwise for the layers that it makes faster, else kOff; make_strategy() refuses it.
enum class Fp8 { kOff, kTensorwise, kRowwise, kAuto };

/// Linear layers of a decoder block, of which each may multiply in 8 bits.
struct Fp8Layers {
  bool qkv = true;   ///< queries, keys and values
  bool o = true;     ///< attention's output
  bool up = true;    ///< the first product of the feed-forward layer; gate and up of a gated one
  bool down = true;  ///< the second one

  /// Whether all of them do.
  bool all() const { return qkv && o && up && down; }
  /// Whether any of them does.
  bool any() const { return qkv || o || up || down; }
  friend bool operator==(const Fp8Layers&, const Fp8Layers&) = default;
};

/// "qkv,up", of the names above in this order; "all", or "none".
std::string name_of(const Fp8Layers& layers);
/// Reads such names, in any order. Throws Error(kInvalidArgument) for another name, or one twice.
Fp8Layers fp8_layers_of(const std::string& names);

}  // namespace tessera
