// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Device scalars on their way to the host.
#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

#include <cstddef>
#include <memory>
#include <vector>

namespace tessera {

/// Starts the copy when made and waits for it only when read, so that the host can issue more work
/// in between.
class LateValues {
 public:
  /// values: scalar tensors of one device, any dtype.
  explicit LateValues(const std::vector<at::Tensor>& values);
  /// values: of one dimension. Its memory is read until read() returns.
  explicit LateValues(const at::Tensor& values);
  std::vector<double> read();  ///< the numbers in the order they were given in; waits for the copy

 private:
  void begin(const at::Tensor& packed, std::vector<size_t> places);
  void end(at::Device device);

  struct Group {
    at::Tensor host;             ///< values of one dtype
    std::vector<size_t> places;  ///< among all
  };
  std::vector<Group> groups_;
  size_t count_ = 0;
  std::unique_ptr<c10::Event> copied_;  ///< null on the CPU
};

}  // namespace tessera
