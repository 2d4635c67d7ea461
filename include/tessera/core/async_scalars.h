// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Asynchronous copy of device scalars to the host.
#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

#include <cstddef>
#include <memory>
#include <vector>

namespace tessera {

/// Device scalars on their way to the host. The constructor starts the copy and read() waits for
/// it, so that the host can issue more work in between.
class AsyncScalars {
 public:
  /// values: scalar tensors of one device, any dtype.
  explicit AsyncScalars(const std::vector<at::Tensor>& values);
  /// values: 1-D; read() ends the use of its memory.
  explicit AsyncScalars(const at::Tensor& values);
  std::vector<double> read();  ///< the values in their given order; waits for the copy

 private:
  void begin(const at::Tensor& packed, std::vector<size_t> places);
  void end(at::Device device);

  struct Group {
    at::Tensor host;             ///< values of one dtype
    std::vector<size_t> places;  ///< indices among all values
  };
  std::vector<Group> groups_;
  size_t count_ = 0;
  std::unique_ptr<c10::Event> copied_;  ///< null on the CPU
};

}  // namespace tessera
