// SPDX-License-Identifier: MIT
#pragma once
// Parts of one block of an exported program.
#include <ATen/core/Tensor.h>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lib/program/constants.h"
#include "lib/program/graph.h"
#include "lib/program/interpreter.h"
#include "lib/program/manifest.h"
#include "lib/program/user_inputs.h"
#include "tessera/model/tensor_parallel.h"

namespace tessera::program {

struct BlockTable;

// Equal layers share the interpreter; the names of what it takes are the block's own.
struct BlockPiece {
  std::shared_ptr<const Interpreter> interpreter;
  std::vector<GraphInput> inputs;  // as the interpreter's graph has them, with this block's names
  std::vector<char> is_written;    // by input: the piece writes to its memory
  std::vector<BlockTable> tables;  // of the inputs of kind kTable
};

// A table that is formed once for each length of rows (rewrites/tables.h).
struct BlockTable {
  BlockPiece piece;     // without tables
  bool paired = false;  // see half_table()
};

// A head whose last operator is a product without bias.
struct BlockProduct {
  BlockPiece before;   // gives what the product takes
  std::string weight;  // the parameter's name in the program
};

// The block's part of one program.
struct BlockVariant {
  at::ScalarType dtype = at::kFloat;
  bool training = true;
  size_t hidden = 0;  // tensors that the block before gives
  BlockPiece main;
  // main with whole layers and products of one input as one operator each, which hides them from
  // adapters.
  std::optional<BlockPiece> joined;
  std::optional<BlockProduct> product;  // of a causal head that acts on rows
  bool acts_on_rows = false;            // see row_proof.h
  bool ends_in_product =
      false;             // main's result is that of a linear layer, whose backward ignores it
  std::string unpacked;  // why it takes no packed rows (token_proof.h); empty: it does
  bool decodes = false;  // takes rows piece by piece, with a key/value cache
  // The auxiliary loss, where main gives the scores alone.
  std::optional<BlockPiece> auxiliary;
};

struct BlockParameter {
  ParameterEntry entry;   // of the parameter itself, not of what is tied to it
  std::string name;       // in the block
  size_t drawn_as = 0;    // its number among the block's parameters as the program has them
  bool alias = false;     // an earlier block has the memory
  bool is_table = false;  // an embedding, or a matrix of the head
  std::string adapts;     // the module whose LoRA matrix it is; empty: none
  TensorCut cut;          // on a tensor axis
};

struct BlockBuffer {
  std::string name;    // in the program
  std::string stored;  // among the weights; empty: not there
  std::vector<int64_t> shape;
  at::ScalarType dtype = at::kFloat;
  bool changes = false;
};

struct BlockParts {
  std::string name;
  size_t index = 0;
  std::vector<BlockVariant> variants;
  std::vector<BlockParameter> parameters;
  std::vector<BlockBuffer> buffers;             // that change, or are stored
  std::map<std::string, std::string> owner_of;  // names in the program -> BlockParameter's entry
  std::vector<InputEntry> user_inputs;          // of the whole program, in order
  std::optional<LossKind> loss;                 // of the last block
  double auxiliary_weight = 0;                  // see Manifest
  std::shared_ptr<const Constants> constants;
  SlicedExtents sliced;
  int data_rank = -1;  // whose buffers are the model's

  // The place of the parameter that has this name in the program, or that it is tied to.
  size_t place_of(const std::string& used) const;
  const BlockParameter& parameter(const std::string& used) const {
    return parameters[place_of(used)];
  }
};

}  // namespace tessera::program
