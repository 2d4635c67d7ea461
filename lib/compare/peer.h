// SPDX-License-Identifier: MIT
#pragma once
// Rows that other trainers run: the scripts of examples/compare/peers, given the same model, rows
// and hyper-parameters.
#include <string>
#include <vector>

#include "lib/compare/child.h"
#include "lib/compare/row.h"

namespace tessera::programs {

std::vector<std::string> peer_names();

// What a peer exits with where a Python package is missing.
constexpr int kPeerUnavailable = 69;

// Throws Error(kInvalidArgument) for a layout that the peer does not have.
void check_peer(const std::string& peer, const TrainOptions& options, Program program);

// Writes the peer's work into logs/ of `output_dir`: rows in the order in which a run takes them,
// and `model_directory`, whose weights it starts from. Throws Error(kDataLoss) where it cannot.
Children::Request peer_request(const ComparisonRow& row, const std::string& name,
                               const std::string& python, const std::string& model_directory,
                               const std::string& output_dir);

// The run of ours that writes the weights drawn for this row's model, without a step's change, to
// final/: flags of a fine-tuning program.
std::vector<std::string> drawn_weights_flags(const TrainOptions& options);

}  // namespace tessera::programs
