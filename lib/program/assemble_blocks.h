// SPDX-License-Identifier: MIT
#pragma once
// From cut programs to blocks.
#include <memory>
#include <string>
#include <vector>

#include "lib/program/block_parts.h"
#include "lib/program/cut_programs.h"
#include "lib/program/rewrites/apply.h"
#include "tessera/model/model_spec.h"

namespace tessera::program {

struct ModelParts {
  std::vector<std::shared_ptr<BlockParts>> blocks;
  std::vector<TiedParameter> tied;
  std::vector<std::pair<int, int>> crossing;  // tensors that each block takes and gives
  RewriteReport report;                       // about whole layers
};

struct PlanOptions {
  // Whose changing buffers are the model's; -1 refuses them with Error(kInvalidArgument).
  int data_rank = -1;
  // By program: what whole layers are proven with; empty: none are looked for.
  std::vector<ProofInputs> proof_inputs = {};
};

// A parameter that several blocks use belongs to the first of them.
ModelParts assemble_blocks(const CutPrograms& programs, const Manifest& manifest,
                           std::shared_ptr<const Constants> constants,
                           const PlanOptions& options = {});

}  // namespace tessera::program
