// SPDX-License-Identifier: MIT
#pragma once
// Rows run by other trainers: scripts in examples/compare/peers, with the same model, rows and
// hyper-parameters.
#include <string>
#include <vector>

#include "lib/compare/child.h"
#include "lib/compare/row.h"

namespace tessera::programs {

std::vector<std::string> peer_names();

// Exit code of a peer without a required Python package.
constexpr int kPeerUnavailable = 69;

// Throws Error(kInvalidArgument) for a layout that the peer does not support.
void check_peer(const std::string& peer, const TrainOptions& options, Program program);

// Writes the peer's work into logs/ of `output_dir`: rows in the order of a run. model_directory:
// its initial weights. Throws Error(kDataLoss) when writing fails.
Children::Request peer_request(const ComparisonRow& row, const std::string& name,
                               const std::string& python, const std::string& model_directory,
                               const std::string& output_dir);

// Flags of a fine-tuning run that writes the random weights of this row's model to final/,
// unchanged by any step.
std::vector<std::string> drawn_weights_flags(const TrainOptions& options);

}  // namespace tessera::programs
