// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Gradient buffer: a unit's full gradient as its parameters' .grad() see it.
#include <ATen/core/Tensor.h>

#include <utility>
#include <vector>

#include "tessera/sharding/unit.h"

namespace tessera {

/// Full gradient of a unit. Between begin() and complete() backward adds to every handle's .grad().
/// Gradients start lazily zero (tessera/core/lazy_zero.h) where the parameter allows it, otherwise
/// as zeros. Autograd always sees zeros.
class GradientBuffer {
 public:
  /// flat: [unit.layout.numel()]; becomes the storage of the handles' .grad().
  GradientBuffer(const ParameterUnit& unit, at::Tensor flat);
  ~GradientBuffer();
  GradientBuffer(const GradientBuffer&) = delete;
  GradientBuffer& operator=(const GradientBuffer&) = delete;

  const at::Tensor& flat() const { return flat_; }  ///< [unit.layout.numel()]
  void begin();                                     ///< starts the accumulation by backward passes
  /// begin() if to_clear() is zero already.
  void begin_cleared();
  /// Tensors that begin() zeroes: all gradients that are not lazily zero, merged if adjacent.
  const std::vector<at::Tensor>& to_clear() const { return to_clear_; }
  /// Zeroes gradients that were not written.
  void complete();

 private:
  at::Tensor flat_;
  std::vector<at::Tensor> blank_, to_clear_;
  std::vector<std::pair<at::Tensor, unsigned>> hooks_;
};

}  // namespace tessera
