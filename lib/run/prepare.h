// SPDX-License-Identifier: MIT
#pragma once
// What a run needs and can be known without other ranks: read and checked once a process, before
// anything is connected or written.
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
  std::optional<AdapterConfig> adapter;         // nothing: every parameter is trained
  std::string base;  // which weights the adapters belong to; "" without adapters
  std::optional<Tokenizer> tokenizer;
  std::string tokenizer_directory;
  std::optional<ChatTemplate> chat_template;  // of Program::kChat with text files
  TokenTable train, validation;               // validation may be empty
  std::optional<QuestionSet> questions;       // with --generation
  std::optional<HeldOutChats> chats;          // the same of Program::kChat
  std::string train_path, dataset_sha256, validation_sha256;
  std::string train_hash, validation_hash;  // RowsHash::text() of whole files, before slices
  std::string weights_hash;                 // of the beginnings of all tensors; "": they are drawn
  double supervised_share = 1;              // of the training rows' tokens
  std::vector<metrics::DataRecord> data_files;
  std::vector<std::string> notices;  // what the user should know, one line each

  const DecoderConfig& config() const { return language_model.config(); }
  ModelHead head() const {
    return task == Task::kCausal ? ModelHead::kCausal : ModelHead::kClassification;
  }
  DataLoaderOptions loader_options(const Communicator& data, bool training) const;
};

// Throws Error(kInvalidArgument) where the tokenizer has ids beyond the model's embedding.
void check_embedding_rows(const Tokenizer& tokenizer, const DecoderConfig& config);

// Model and tokenizer by their names on the Hub become the directories of its local cache, with a
// notice.
void take_from_hub_cache(Prepared& run);

// The model of the configuration for so many labels, with the adapters that the options ask for.
// base: how the user named it.
void make_model(Prepared& run, int64_t num_labels, const std::string& base);
// The tokenizer that --tokenizer or --model names, where one is needed or there is one.
void prepare_tokenizer(Prepared& run);

// The model's configuration alone, which --model or --model_config names. Errors as of prepare().
void read_model_config(Prepared& run);

// Reads model configuration, weights' headers, tokenizer and data. Throws Error(kInvalidArgument)
// or Error(kDataLoss) with flag or file, place and remedy.
Prepared prepare(const TrainOptions& options, Program program);

}  // namespace tessera::programs
