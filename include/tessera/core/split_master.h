// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// fp32 master weights beside parameters in bf16, in 2 bytes instead of 4.
#include <ATen/core/Tensor.h>

#include <cstdint>

namespace tessera {

/// fp32 values as two tensors: what they are in bf16, rounded to nearest even, and what each lies
/// above it, in units of fp32's last place. Away from zero counts as above, so both are parts of
/// the bits: bits = (rounded << 16) + remainder, across powers of two, infinity and signs. The
/// remainder lies in [-0x8000, 0x7FFF]. One value in 131072 would need 0x8000: the middle above an
/// even neighbour. settle() moves it to 0x7FFF, which rounds to the same; all others are exact, and
/// NaN stays NaN.
struct SplitMaster {
  at::Tensor rounded;    ///< bf16
  at::Tensor remainder;  ///< int16, of the same shape and device

  bool defined() const { return remainder.defined(); }  ///< whether it holds anything
  /// The elements [first, first + count) of 1-D tensors, as views.
  SplitMaster narrow(int64_t first, int64_t count) const;
  at::Tensor join() const;  ///< the fp32 values, in new memory
  /// Writes both tensors. values: of their shape, any device and floating dtype; settled on the
  /// way.
  void set(const at::Tensor& values) const;
};

/// fp32 values, in place: those that a SplitMaster cannot hold move by one unit of the last place
/// towards zero. A second time changes nothing.
void settle(const at::Tensor& values);

/// The elements that settle() would move: bool, of the shape of the values.
at::Tensor settle_moves(const at::Tensor& values);

/// A master weight or any other fp32 value of the state, in either form.
struct MasterValues {
  at::Tensor whole;   ///< any dtype; undefined where it is split
  SplitMaster split;  ///< undefined where it is whole

  /// Elements of 1-D values, as views.
  MasterValues narrow(int64_t first, int64_t count) const;
  at::Tensor get() const;                    ///< `whole` itself, or the joined values in new memory
  void set(const at::Tensor& values) const;  ///< in the dtype and on the device that they have
};

}  // namespace tessera
