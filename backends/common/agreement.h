// SPDX-License-Identifier: MIT
#pragma once
// Checks that ranks hold the same model and work on the same data. All checks are collective; all
// ranks throw if one fails.
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tessera/comm/communicator.h"
#include "tessera/model/model_spec.h"

namespace tessera {

// Compares the blocks' names. Throws Error(kInvalidArgument) with the first difference from rank 0.
void require_same_blocks(const ModelSpec& model, Communicator& data);

// Builds the rank's block. If one rank fails, all throw its message. Names, shapes, treatment and
// values of parameters and buffers must be equal on all data ranks; values may be copied from rank
// 0 (BlockBuilder::from_first_rank). In-process ranks must not share tensors. Throws
// Error(kInvalidArgument) with the first violating parameter or buffer.
// expert: the expert axis, over which experts differ; owners: data ranks with the same ones.
std::unique_ptr<Block> build_together(const BlockBuilder& builder, const BuildContext& context,
                                      Communicator& data, const Communicator* expert = nullptr,
                                      Communicator* owners = nullptr);

// Compares the optimizers' describe() over all ranks of the mesh. Throws Error(kInvalidArgument)
// with the ranks of each.
void require_same_optimizer(const std::string& description, Communicator& ranks);

// Checks replicated initial values (Placement::replicas) after all blocks are built, with one
// exchange per set of replicas. Also checks that tensor ranks agree on the optimizer's treatment of
// each parameter.
class HeldValues {
 public:
  void add(const std::string& block, const std::vector<Parameter>& parameters);
  // Collective over the replicas and the tensor axis (null: none). Throws Error(kInvalidArgument)
  // with the first difference.
  void require_equal(Communicator* tensor) const;

 private:
  struct Group {
    Communicator* ranks;
    std::vector<std::string> names;
    std::vector<int64_t> hashes;
  };
  void require_same_rules(Communicator& tensor) const;

  std::vector<Group> groups_;  // in block order, equal on all replicas
  std::vector<std::string> names_;
  std::vector<int64_t> rules_;
};

// Copies the first data rank's values; skips a tied placeholder.
void take_from_first_rank(const at::Tensor& tensor, Communicator& data);

// Hash of the micro-batches' tensors and counts: int64 scalar on the device, without
// synchronisation.
at::Tensor fingerprint(std::span<const MicroBatch> micro_batches, at::Device device);

}  // namespace tessera
