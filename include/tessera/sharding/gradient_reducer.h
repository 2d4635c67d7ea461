// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Gradient reduction over ranks, in the reduce dtype.
#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>

#include <array>
#include <cstdint>
#include <vector>

#include "tessera/comm/communicator.h"

namespace tessera {

class GradientReducer;

/// A pending reduction; a default-constructed one is done. The GradientReducer outlives it.
class Reduction {
 public:
  /// Waits until the result is in its destination, for the current stream.
  void wait();

 private:
  friend class GradientReducer;
  struct Placing {
    at::Tensor to, from;
    bool add = false;
    void run() const;
  };
  Work work_;
  std::vector<Placing> placings_;    ///< copies to run after the work
  GradientReducer* wire_ = nullptr;  ///< set if the reduction goes through the staging buffers
  uint64_t last_piece_ = 0;
};

/// Reduces gradients over ranks. With equal gradient and reduce dtypes collectives work in place.
/// Otherwise two alternating staging buffers on a separate stream cast to the reduce dtype and
/// back. Accumulation over micro-batches keeps the gradient dtype. Used by one strategy on one
/// thread; reductions of one communicator start in the same order on all its ranks.
class GradientReducer {
 public:
  /// piece_bytes: size of each staging buffer; less if `largest`, the elements of the largest
  /// tensor, fit.
  GradientReducer(at::Device device, at::ScalarType gradient, at::ScalarType reduce,
                  int64_t piece_bytes, int64_t largest);
  ~GradientReducer();
  /// Elements of a staging buffer for such reductions.
  static int64_t piece_numel(at::ScalarType reduce, int64_t piece_bytes, int64_t largest);
  GradientReducer(const GradientReducer&) = delete;
  GradientReducer& operator=(const GradientReducer&) = delete;

  /// All-reduces contiguous 1-D tensors in place.
  Reduction all_reduce(Communicator& comm, const std::vector<at::Tensor>& tensors);
  /// Tensors of one reduce-scatter. full: [size * part], overwritten; own: [part] receives this
  /// rank's part of the sum. own may be this rank's part of full.
  struct Part {
    at::Tensor full, own;  ///< 1-D, contiguous, in the gradients' dtype
    bool add = false;      ///< whether to accumulate into own
  };
  /// Reduce-scatters all parts together; see Part.
  Reduction reduce_scatter(Communicator& comm, const std::vector<Part>& parts);
  /// Waits until every started reduction is in its destination.
  void settle_all() { settle_until(pieces_); }
  int64_t bytes() const;  ///< bytes of the staging buffers

 private:
  friend class Reduction;
  struct Columns {
    at::Tensor from;  ///< [rows, n]
    Reduction::Placing placing;
  };
  struct Piece {
    at::Tensor buffer;
    uint64_t number = 0;  ///< number of the piece in flight in it
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
