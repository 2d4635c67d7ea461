// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Split master weights: 2 bytes beside each bf16 parameter instead of a 4-byte fp32 copy.
#include <ATen/core/Tensor.h>

#include <cstdint>

namespace tessera {

/// fp32 values as two tensors: the bf16 value, rounded to nearest even, and the remainder in units
/// of fp32's last place. bits = (rounded << 16) + remainder, across powers of two, infinity and
/// signs; the remainder lies in [-0x8000, 0x7FFF]. One value in 131072 would need 0x8000: the
/// midpoint above an even neighbour. settle() moves it to 0x7FFF, which rounds to the same bf16.
/// All others are exact, and NaN stays NaN.
struct SplitMaster {
  at::Tensor rounded;    ///< bf16
  at::Tensor remainder;  ///< int16, of the same shape and device

  bool defined() const { return remainder.defined(); }  ///< whether it holds anything
  /// The elements [first, first + count) of 1-D tensors, as views.
  SplitMaster narrow(int64_t first, int64_t count) const;
  at::Tensor join() const;  ///< the fp32 values, in new memory
  /// Settles the values and writes both tensors. values: their shape, any device and floating
  /// dtype.
  void set(const at::Tensor& values) const;
};

/// Rounds fp32 values in place to those that a SplitMaster can hold: others move by one unit of the
/// last place towards zero. Idempotent.
void settle(const at::Tensor& values);

/// Mask of the elements that settle() would change: bool, of the values' shape.
at::Tensor settle_moves(const at::Tensor& values);

/// A master weight or another fp32 state value, whole or split.
struct MasterValues {
  at::Tensor whole;   ///< any dtype; undefined where it is split
  SplitMaster split;  ///< undefined where it is whole

  /// The elements [first, first + count) of 1-D values, as views.
  MasterValues narrow(int64_t first, int64_t count) const;
  at::Tensor get() const;  ///< `whole` itself, or the joined values in new memory
  /// Writes values in the existing dtype and on the existing device.
  void set(const at::Tensor& values) const;
};

}  // namespace tessera
