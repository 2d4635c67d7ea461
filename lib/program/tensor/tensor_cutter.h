// SPDX-License-Identifier: MIT
#pragma once
// A block of a program for one rank of a tensor axis.
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "lib/program/block_parts.h"
#include "lib/program/rewrites/proof.h"
#include "lib/program/tensor/rules.h"

namespace tessera::program {

// Rules of a model, and what the blocks' graphs are proven with.
class TensorCutter {
 public:
  // inputs: by variant of a block.
  TensorCutter(TensorRules rules, std::vector<ProofInputs> inputs)
      : rules_(std::move(rules)), inputs_(std::move(inputs)) {}

  // The block for this rank of `ranks`. proves: each graph whose operators were given other extents
  // runs beside the whole one, all ranks in one process. Throws Error(kInvalidArgument) with the
  // path where rules do not reach, or where the two differ.
  std::shared_ptr<const BlockParts> cut(const BlockParts& block, int rank, int ranks, bool proves);

  // The number that the degrees of a tensor axis must divide, from 2 to 16. Where none is possible:
  // one that all divide, so that building a block says why.
  int64_t divisor(const std::vector<std::shared_ptr<BlockParts>>& blocks) const;

 private:
  void check_proof(const BlockPiece& piece, const struct CutGraph& cut, size_t variant,
                   const std::string& block);

  const TensorRules rules_;
  const std::vector<ProofInputs> inputs_;
  std::mutex mutex_;
  std::map<std::string, std::string> proofs_;  // by ranks and graph: why none holds; empty: it does
};

// Why a block that ranks share cannot take and give the rank's own tokens alone (sequence
// parallelism): it is neither a whole layer nor an end of the model. Empty: it can.
std::string sequence_problem(const BlockParts& block);

}  // namespace tessera::program
