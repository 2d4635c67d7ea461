// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Models of PyTorch that were exported once (torch.export) and are trained here: no Python, no
/// code of the model's own.
#include <optional>
#include <string>

#include "tessera/model/model_spec.h"

namespace tessera {

/// Options that the directory of an exported program does not hold.
struct ProgramOptions {
  /// Every data rank computes running statistics (of BatchNorm) and other buffers that forward
  /// changes from its own rows: the rank whose values are the model's. Without it programs that
  /// change buffers are refused.
  std::optional<int> running_statistics_of_rank = std::nullopt;
  /// false: the program is one block, wherever it could be cut.
  bool cut = true;
  /// Regions that tessera has operators for are replaced by them, each with a proof: both give the
  /// same outputs and gradients on drawn inputs. false: ATen's operators run as they were exported.
  bool own_operators = true;
  /// JSON file with more rules of the tensor axis (docs/library/programs.md). Empty: none.
  std::string tensor_rules = {};
  /// Logs what was replaced, what was not, and why.
  bool report = false;
};

/// Whether the directory holds exported programs (program.json).
bool has_program(const std::string& directory);

/// The model of a directory with program.json, the programs it names and, where they have any,
/// their constants. It is cut at the repeated layers that program.json names: a block before them,
/// a block a layer, and one behind them, which gives the loss; where it cannot be cut, blocks are
/// one, and a line of the log says why. Weights come from BuildContext::source under the names of
/// the Hub, or are drawn as program.json says, per block.
///
/// Programs are one for each dtype of the parameters and for training and evaluation. The first
/// input is MicroBatch::input_ids, "labels" and "attention_mask" are those of the micro-batch, and
/// others MicroBatch::extra of the same name. Dropout draws from the micro-batch's seed and the
/// block's index.
///
/// The directory may come from a stranger. Throws Error(kDataLoss) with file, node and operator for
/// what is malformed or not supported: see docs/library/programs.md.
ModelSpec from_program(const std::string& directory, const ProgramOptions& options = {});

}  // namespace tessera
