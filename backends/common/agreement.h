// SPDX-License-Identifier: MIT
#pragma once
// Ranks that must hold the same model, or work on the same data, find out when they do not. All
// checks are collective, and all ranks throw when one must.
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tessera/comm/communicator.h"
#include "tessera/model/model_spec.h"

namespace tessera {

// The blocks' names. Throws Error(kInvalidArgument) with the first that differs from rank 0's.
void require_same_blocks(const ModelSpec& model, Communicator& data);

// The rank's block. Where one rank cannot build it all throw, with what that rank says. Names,
// shapes and treatment of its parameters and buffers are the same on all ranks of the data axis,
// and so are their values, or become rank 0's (BlockBuilder::from_first_rank); ranks that are
// threads of one process hold tensors of their own. Throws Error(kInvalidArgument) with the first
// parameter or buffer of which that is not so.
std::unique_ptr<Block> build_together(const BlockBuilder& builder, const BuildContext& context,
                                      Communicator& data);

// The optimizer's describe(), over all ranks of the mesh. Throws Error(kInvalidArgument) that says
// which ranks were given which.
void require_same_optimizer(const std::string& description, Communicator& ranks);

// Initial values that several ranks of the model's own axes hold (Placement::holders), compared
// once when all blocks are built: one exchange for each set of holders. And how the optimizer
// treats each parameter, which is the same on all ranks of a tensor axis.
class HeldValues {
 public:
  void add(const std::string& block, const std::vector<Parameter>& parameters);
  // Collective over the holders and the tensor axis (null: there is none). Throws
  // Error(kInvalidArgument) with the first that differs.
  void require_equal(Communicator* tensor) const;

 private:
  struct Group {
    Communicator* ranks;
    std::vector<std::string> names;
    std::vector<int64_t> hashes;
  };
  void require_same_rules(Communicator& tensor) const;

  std::vector<Group> groups_;  // in the order of the blocks, the same on all holders
  std::vector<std::string> names_;
  std::vector<int64_t> rules_;
};

// The values of the first rank of the data axis; a tied placeholder is left alone.
void take_from_first_rank(const at::Tensor& tensor, Communicator& data);

// Of what the tensors hold and the counts say: int64 scalar on the tensors' device, without waiting
// for it.
at::Tensor fingerprint(std::span<const MicroBatch> micro_batches, at::Device device);

}  // namespace tessera
