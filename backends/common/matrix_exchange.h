// SPDX-License-Identifier: MIT
#pragma once
// Step of whole matrices: gradients to their owners, updates back.
#include <ATen/core/Tensor.h>

#include <array>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "backends/common/process_groups.h"
#include "lib/sharding/matrix_owners.h"
#include "tessera/backends/unit_optimizer.h"
#include "tessera/optim/matrix_optimizer.h"
#include "tessera/sharding/gradient_store.h"

namespace tessera {

// [Note: whole matrices]
// Every matrix has one owner (lib/sharding/matrix_owners.h). In rounds, its pieces go from the
// shards' gradients into the owner's buffer; on a tensor axis slices then go to the one rank that
// owns the whole. The owner computes the update, which returns the same way to update() on the
// shards' ranks. With replicated shards each group of replicas owns a part of the matrices and
// broadcasts its updates. A round's messages form one group. Its gather overlaps the previous
// round's computation, its return the next one's. Buffers are fixed, two of each kind.
//
// Owned by one MatrixUnits.
class MatrixExchange {
 public:
  // Inputs; all outlive the object.
  struct Parts {
    const std::vector<ParameterUnit>& units;
    const ProcessGroups& ranks;
    const MatrixOptimizer& optimizer;
    at::Device device;
    at::ScalarType gradient;   // dtype
    int64_t bucket_bytes = 0;  // see ParallelConfig
    bool overlap = true;
    bool state_on_host = false, pin_memory = false;
  };
  // All units exist.
  explicit MatrixExchange(const Parts& parts);

  // Owned part of a segment, like GradientStore::owned().
  using Owned = std::function<at::Tensor(size_t unit, size_t segment)>;
  // Computes update() of every matrix unit from this step's gradients (current stream). Reads
  // masters if the optimizer needs parameters.
  void run(const StepScalars& scalars, const Owned& gradients, const Owned& masters);
  // The update of a segment's owned part; its address is constant.
  at::Tensor update(size_t unit, size_t segment) const;

  std::vector<MatrixState> states() const;
  const at::Tensor& step_count() const { return step_count_; }  // fp64 scalar on the device
  int64_t state_bytes() const;
  int64_t buffer_bytes() const;

 private:
  struct Matrix {
    OwnedMatrix owned;
    std::string name;
    std::vector<int64_t> local, shape;  // shapes of this rank's slice and of the whole
    Placement placement;
    bool here = false;   // whether this rank's slice is gathered here
    bool mine = false;   // whether this rank also updates it
    NamedTensors state;  // fp32, in its shapes, if mine
  };
  struct Round {
    Communicator* cut = nullptr;
    std::vector<Matrix> matrices;
  };
  void add_round(const MatrixRound& round);
  bool in_my_group(const Matrix& matrix) const { return matrix.owned.group == group_; }
  at::Tensor piece_of(const Matrix& matrix, const MatrixPiece& piece, const Owned& of) const;
  // The flat slice of a matrix whose pieces were gathered.
  at::Tensor slice_of_matrix(const Matrix& matrix, const at::Tensor& buffer, const Owned& of) const;
  Owned places() const;  // update() as Owned

  enum class Way { kToOwner, kBack };
  // Moves pieces between shards and the owner's buffer.
  Work move_pieces(const Round& round, const at::Tensor& buffer, const Owned& of, Way way) const;
  // Moves slices between a tensor axis's ranks and the owner, which holds them side by side.
  void move_slices(const Round& round, const at::Tensor& buffer, const Owned& of,
                   const at::Tensor& slices, Way way) const;
  // All slices, joined, of a sliced matrix that this rank owns.
  at::Tensor whole(const Matrix& matrix, const at::Tensor& buffer, const Owned& of,
                   const at::Tensor& slices) const;
  void compute(Round& round, size_t half, const StepScalars& scalars, const Owned& gradients,
               const Owned& masters);
  at::Tensor update_of(Matrix& matrix, const at::Tensor& gradient,
                       const at::Tensor& parameter) const;
  Work tell_groups(const Round& round) const;

  const Parts parts_;
  int group_ = 0, shard_ = 0, shards_ = 1;
  std::vector<Round> rounds_;
  std::vector<at::Tensor> updates_;  // by unit: compact; undefined for other units
  std::array<at::Tensor, 2> gathered_, gathered_masters_, outgoing_;
  at::Tensor gradient_, parameter_;  // fp32, one whole matrix
  at::Tensor slices_, master_slices_, updates_of_slices_;
  at::Tensor step_count_;
};

}  // namespace tessera
