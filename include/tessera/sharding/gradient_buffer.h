// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// A unit's whole gradient, as the handles of its parameters see it.
#include <ATen/core/Tensor.h>

#include <utility>
#include <vector>

#include "tessera/sharding/unit.h"

namespace tessera {

/// Between begin() and complete() every handle's .grad() is to be added to; those of parameters
/// that allow it start blank (tessera/core/blank.h), the others as zeros. Autograd finds zeros.
class GradientBuffer {
 public:
  /// flat: [unit.layout.numel()]; becomes the storage of the handles' .grad().
  GradientBuffer(const ParameterUnit& unit, at::Tensor flat);
  ~GradientBuffer();
  GradientBuffer(const GradientBuffer&) = delete;
  GradientBuffer& operator=(const GradientBuffer&) = delete;

  const at::Tensor& flat() const { return flat_; }  ///< [unit.layout.numel()]
  void begin();                                     ///< from here on a backward pass may add
  /// begin() of one whose to_clear() are zeros already.
  void begin_cleared();
  /// What begin() sets to zero: all but the blank parameters, side by side where they lie so.
  const std::vector<at::Tensor>& to_clear() const { return to_clear_; }
  /// What nobody has written holds zeros.
  void complete();

 private:
  at::Tensor flat_;
  std::vector<at::Tensor> blank_, to_clear_;
  std::vector<std::pair<at::Tensor, unsigned>> hooks_;
};

}  // namespace tessera
