// SPDX-License-Identifier: MIT
#pragma once
// A model directory that holds exported programs in place of a family that is built in.
#include <string>

#include "tessera/checkpoint/huggingface.h"
#include "tessera/model/model_spec.h"
#include "tessera/models/decoder_config.h"
#include "tessera/program/from_program.h"

namespace tessera::programs {

// Facts of the directory's config.json that a run needs: names, tokens, classes, and sizes that
// rows must fit. Nothing of the model's mathematics is in it.
DecoderConfig described_by(const std::string& directory);

// The model that the directory's programs are. Throws Error(kInvalidArgument) where they were
// exported for another head, or for another number of classes than the rows have.
ModelSpec make_imported(const std::string& directory, ModelHead head, int64_t num_labels,
                        const ProgramOptions& options = {});

// XXH3 of config.json and each file of the programs: ranks must have the same ones.
// "" for a directory of "".
std::string programs_hash(const std::string& directory);

// config.json and the programs, so that what was trained can be trained on.
void add_program_files(HuggingFaceWriter& writer, const std::string& directory);

}  // namespace tessera::programs
