// SPDX-License-Identifier: MIT
#pragma once
// Inputs of a run that need no other ranks: read and checked once per process, before anything is
// connected or written.
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lib/checkpoint/directory_lock.h"
#include "lib/run/adapters.h"
#include "lib/run/answers.h"
#include "lib/run/chat_answers.h"
#include "lib/settings/train_flags.h"
#include "tessera/checkpoint/huggingface.h"
#include "tessera/comm/communicator.h"
#include "tessera/data/chat_template.h"
#include "tessera/data/data_loader.h"
#include "tessera/data/tokenizer.h"
#include "tessera/metrics/event.h"
#include "tessera/models/language_model.h"

namespace tessera::programs {

struct Prepared {
  TrainOptions options;
  Program program = Program::kSquad;
  Task task = Task::kCausal;
  LanguageModel language_model;  // of an imported model what its config.json says
  std::string imported;          // directory of exported programs; "": a family that is built in
  ModelSpec model;
  std::unique_ptr<const TensorSource> weights;  // null: drawn at random
  std::optional<AdapterConfig> adapter;         // empty: all parameters are trained
  std::string base;                             // base weights of the adapters; "" without adapters
  std::optional<Tokenizer> tokenizer;
  std::string tokenizer_directory;
  std::optional<ChatTemplate> chat_template;  // Program::kChat with text files only
  TokenTable train, validation;               // validation may be empty
  std::optional<QuestionSet> questions;       // with --generation
  std::optional<HeldOutChats> chats;          // with --generation of Program::kChat
  std::string train_path, dataset_sha256, validation_sha256;
  std::string train_hash, validation_hash;  // RowsHash::text() of whole files, before slices
  std::string weights_hash;     // hash of the first bytes of all tensors; "": random weights
  double supervised_share = 1;  // share of the training rows' tokens that are supervised
  std::vector<metrics::DataRecord> data_files;
  std::vector<std::string> notices;  // messages for the user, one line each

  const DecoderConfig& config() const { return language_model.config(); }
  ModelHead head() const {
    return task == Task::kCausal ? ModelHead::kCausal : ModelHead::kClassification;
  }
  DataLoaderOptions loader_options(const Communicator& data, bool training) const;
};

// Throws Error(kInvalidArgument) for token ids beyond the model's embedding.
void check_embedding_rows(const Tokenizer& tokenizer, const DecoderConfig& config);

// Replaces Hub names of model and tokenizer by directories of the local cache, with a notice.
void take_from_hub_cache(Prepared& run);

// Builds the configured model with num_labels classes and the adapters that the options ask for.
// base: the user's name of it.
void make_model(Prepared& run, int64_t num_labels, const std::string& base);
// Reads the tokenizer named by --tokenizer or --model, if needed or present.
void prepare_tokenizer(Prepared& run);

// Reads only the configuration that --model or --model_config names. Throws as prepare().
void read_model_config(Prepared& run);

// Reads model configuration, weights' headers, tokenizer and data. Throws Error(kInvalidArgument)
// or Error(kDataLoss) with flag or file, position and remedy.
Prepared prepare(const TrainOptions& options, Program program);

}  // namespace tessera::programs
