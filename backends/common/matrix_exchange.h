// SPDX-License-Identifier: MIT
#pragma once
// The step of matrices that are updated as wholes: to their owners and back.
#include <ATen/core/Tensor.h>

#include <array>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "backends/common/strategy_ranks.h"
#include "lib/sharding/matrix_owners.h"
#include "tessera/backends/unit_optimizer.h"
#include "tessera/optim/matrix_optimizer.h"
#include "tessera/sharding/gradient_store.h"

namespace tessera {

// [Note: whole matrices]
// Every matrix has one owner (lib/sharding/matrix_owners.h). Round by round its pieces go straight
// from the shards' gradients into the owner's buffer, on a tensor axis then slice by slice to the
// one rank of the axis that owns the whole; it updates the matrix, and the update goes the same way
// back into the places of updates() on the ranks that hold the shards. Where several ranks hold the
// same shard each group of them owns a part of the matrices and broadcasts its updates to the
// others. The messages of a round are one group; a round's gather runs while the round before is
// computed, and its way back while the next one is. Buffers are fixed, two of each kind in turn.
//
// Owned by one MatrixUnits.
class MatrixExchange {
 public:
  // All of it outlives this.
  struct Parts {
    const std::vector<ParameterUnit>& units;
    const StrategyRanks& ranks;
    const MatrixOptimizer& optimizer;
    at::Device device;
    at::ScalarType gradient;   // dtype
    int64_t bucket_bytes = 0;  // see ParallelConfig
    bool overlap = true;
    bool state_on_host = false, pin_memory = false;
  };
  // All units are there.
  explicit MatrixExchange(const Parts& parts);

  // The owned part of a segment, as GradientStore::owned().
  using Owned = std::function<at::Tensor(size_t unit, size_t segment)>;
  // On return (current stream) update() of every unit of matrices holds what follows from this
  // step's gradients. masters are read where the optimizer asks for parameters.
  void run(const StepScalars& scalars, const Owned& gradients, const Owned& masters);
  // Where the updates of the owned part of a segment are; its address never changes.
  at::Tensor update(size_t unit, size_t segment) const;

  std::vector<MatrixState> states() const;
  const at::Tensor& step_count() const { return step_count_; }  // fp64 scalar on the device
  int64_t state_bytes() const;
  int64_t buffer_bytes() const;

 private:
  struct Matrix {
    OwnedMatrix owned;
    std::string name;
    std::vector<int64_t> local, shape;  // of this rank's slice, and of the whole
    Placement placement;
    bool here = false;   // this rank's slice of it comes here
    bool mine = false;   // and this rank updates it
    NamedTensors state;  // fp32, in its shapes, where it is mine
  };
  struct Round {
    Communicator* cut = nullptr;
    std::vector<Matrix> matrices;
  };
  void add_round(const MatrixRound& round);
  bool in_my_group(const Matrix& matrix) const { return matrix.owned.group == group_; }
  at::Tensor piece_of(const Matrix& matrix, const MatrixPiece& piece, const Owned& of) const;
  // Where the flat slice of a matrix whose pieces were gathered lies.
  at::Tensor slice_of_matrix(const Matrix& matrix, const at::Tensor& buffer, const Owned& of) const;
  Owned places() const;  // update()

  enum class Way { kToOwner, kBack };
  // Between the shards' pieces and the owner's buffer.
  Work move_pieces(const Round& round, const at::Tensor& buffer, const Owned& of, Way way) const;
  // Between the slices that a tensor axis holds and those of the owner, which lie side by side.
  void move_slices(const Round& round, const at::Tensor& buffer, const Owned& of,
                   const at::Tensor& slices, Way way) const;
  // Of a cut matrix that is mine: all slices, joined.
  at::Tensor whole(const Matrix& matrix, const at::Tensor& buffer, const Owned& of,
                   const at::Tensor& slices) const;
  void compute(Round& round, size_t turn, const StepScalars& scalars, const Owned& gradients,
               const Owned& masters);
  at::Tensor update_of(Matrix& matrix, const at::Tensor& gradient,
                       const at::Tensor& parameter) const;
  Work tell_groups(const Round& round) const;

  const Parts parts_;
  int group_ = 0, shard_ = 0, shards_ = 1;
  std::vector<Round> rounds_;
  std::vector<at::Tensor> updates_;  // by unit: compact; undefined for other units
  std::array<at::Tensor, 2> gathered_, gathered_masters_, outgoing_;
  at::Tensor gradient_, parameter_;  // fp32, of one whole matrix
  at::Tensor slices_, master_slices_, updates_of_slices_;
  at::Tensor step_count_;
};

}  // namespace tessera
