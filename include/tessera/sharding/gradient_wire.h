// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Sums of gradients over ranks, in the dtype that collectives carry.
#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>

#include <array>
#include <cstdint>
#include <vector>

#include "tessera/comm/communicator.h"

namespace tessera {

class GradientWire;

/// A sum under way; a default-constructed one is done. The wire outlives it.
class Reduction {
 public:
  /// From here on the result is in its place, for the current stream.
  void wait();

 private:
  friend class GradientWire;
  struct Placing {
    at::Tensor to, from;
    bool add = false;
    void run() const;
  };
  Work work_;
  std::vector<Placing> placings_;  ///< after the work
  GradientWire* wire_ = nullptr;   ///< set when the sum goes through its staging
  uint64_t last_piece_ = 0;
};

/// Where the wire carries the gradients' own dtype, collectives work in place. Else they go through
/// two pieces of staging in turn, on a stream of their own: rounded (or widened) to the wire's
/// dtype on the way in, and back on the way out, so that what is summed here over micro-batches is
/// never rounded to the wire's. Used by one strategy on one thread; sums of one communicator start
/// in the same order on all its ranks.
class GradientWire {
 public:
  /// piece_bytes: of staging, each; less where `largest`, the most elements of one tensor, fit.
  GradientWire(at::Device device, at::ScalarType gradient, at::ScalarType reduce,
               int64_t piece_bytes, int64_t largest);
  ~GradientWire();
  /// Elements of a piece of staging for such sums.
  static int64_t piece_numel(at::ScalarType reduce, int64_t piece_bytes, int64_t largest);
  GradientWire(const GradientWire&) = delete;
  GradientWire& operator=(const GradientWire&) = delete;

  /// In place; contiguous 1-D tensors.
  Reduction all_reduce(Communicator& comm, const std::vector<at::Tensor>& tensors);
  /// full: [size * part], whose value is lost; own: [part] gets this rank's part of the sum, added
  /// to what it holds where asked. own may be this rank's part of full.
  struct Part {
    at::Tensor full, own;  ///< 1-D, contiguous, in the gradients' dtype
    bool add = false;      ///< whether own keeps what it holds
  };
  /// Reduces all parts together; see Part.
  Reduction reduce_scatter(Communicator& comm, const std::vector<Part>& parts);
  /// Every sum that was started is in its place, whoever holds its Reduction.
  void settle_all() { settle_until(pieces_); }
  int64_t bytes() const;  ///< bytes of the staging

 private:
  friend class Reduction;
  struct Columns {
    at::Tensor from;  ///< [rows, n]
    Reduction::Placing placing;
  };
  struct Piece {
    at::Tensor buffer;
    uint64_t number = 0;  ///< of the piece in flight in it
    Work work;
    std::vector<Reduction::Placing> placings;
  };
  bool converts() const { return staging_.front().buffer.defined(); }
  Reduction send(Communicator& comm, bool scatter, const std::vector<Columns>& columns);
  void launch(Communicator& comm, bool scatter, const std::vector<Columns>& columns);
  void settle(Piece& piece);
  void settle_until(uint64_t number);

  c10::Stream stream_;
  std::array<Piece, 2> staging_;
  uint64_t pieces_ = 0;
};

}  // namespace tessera
