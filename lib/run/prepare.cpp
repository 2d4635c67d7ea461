// SPDX-License-Identifier: MIT
#include "lib/run/prepare.h"

#include <algorithm>
#include <filesystem>

#include "lib/data/supervised_share.h"
#include "lib/interop/hub_cache.h"
#include "lib/run/grown_embedding.h"
#include "lib/run/imported_model.h"
#include "lib/run/model_files.h"
#include "lib/run/prepare_data.h"
#include "lib/run/update_rules.h"
#include "tessera/core/error.h"
#include "tessera/core/json.h"
#include "tessera/program/from_program.h"

namespace tessera::programs {
namespace {

namespace fs = std::filesystem;

void resize_embeddings(Prepared& run) {
  int64_t& rows = run.language_model.config().vocabulary;
  const int64_t wanted = run.tokenizer->size();
  if (wanted <= rows) {
    run.notices.push_back(
        concat("--resize_embeddings adds nothing: ", wanted, " tokens have ", rows, " rows"));
    return;
  }
  run.notices.push_back(concat("the embedding grows from ", rows, " to ", wanted, " rows"));
  if (run.weights) {
    run.weights =
        with_grown_embedding(std::move(run.weights), rows, wanted, run.options.training.seed);
  }
  rows = wanted;
}

// Losses of routers: the flags, or config.json's. transformers' classifiers have none.
void set_router_losses(Prepared& run) {
  const TrainingOptions& o = run.options.training;
  const double balance = o.router_aux_loss_coef;
  check(balance == -1 || balance >= 0, ErrorCode::kInvalidArgument, "--router_aux_loss_coef is ",
        balance, "; it must be 0 or more, or -1 for config.json's");
  DecoderConfig& config = run.language_model.config();
  const bool causal = run.task == Task::kCausal, built_in = run.imported.empty();
  check((balance <= 0 && o.router_z_loss_coef == 0) || (built_in && causal && config.experts > 0),
        ErrorCode::kInvalidArgument,
        "--router_aux_loss_coef and --router_z_loss_coef are for causal models of a built-in "
        "family with experts; ",
        !built_in            ? "an exported program has the losses that it was exported with"
        : config.experts > 0 ? "a classifier's loss has none of its routers"
                             : "this model has no experts");
  if (!built_in) return;
  if (balance >= 0) config.router_aux_loss_coef = balance;
  if (!causal) config.router_aux_loss_coef = 0;
  config.router_z_loss_coef = o.router_z_loss_coef;
  config.count_experts = o.count_experts && causal;
}

void prepare_config(Prepared& run) {
  read_model_config(run);
  check(!run.options.parallel.recompute_experts ||
            (run.imported.empty() && run.language_model.config().experts > 0),
        ErrorCode::kInvalidArgument,
        "--recompute_experts is for models of a built-in family with experts; leave it out");
  set_router_losses(run);
  if (!run.options.model.directory.empty()) {
    auto weights = std::make_unique<HuggingFaceDirectory>(run.options.model.directory);
    run.weights_hash = weights->fingerprint();
    if (run.options.trains_adapters()) run.base = concat("weights ", run.weights_hash);
    run.weights = std::move(weights);
  } else if (run.options.trains_adapters()) {
    run.base = concat("weights drawn from --seed ", run.options.training.seed);
  }
  for (const std::string& notice : run.config().notices) run.notices.push_back(notice);
  if (!run.tokenizer) return;
  if (run.options.model.resize_embeddings) resize_embeddings(run);
  check_embedding_rows(*run.tokenizer, run.config());
}

}  // namespace

void check_embedding_rows(const Tokenizer& tokenizer, const DecoderConfig& config) {
  check(tokenizer.size() <= config.vocabulary, ErrorCode::kInvalidArgument, tokenizer.origin(),
        " has ", tokenizer.size(), " tokens, the model's embedding only ", config.vocabulary,
        " rows, so ids from ", config.vocabulary,
        " on have none; take the tokenizer that came with the model, or train with "
        "--resize_embeddings, which adds rows for them");
}

void take_from_hub_cache(Prepared& run) {
  for (const auto& [flag, name] : {std::pair{"--model ", &run.options.model.directory},
                                   {"--tokenizer ", &run.options.model.tokenizer},
                                   {"--adapter ", &run.options.lora.adapter}}) {
    const std::string path = find_in_hub_cache(*name);
    if (path == *name) continue;
    run.notices.push_back(concat(flag, *name, " is ", path));
    *name = path;
  }
}

void prepare_tokenizer(Prepared& run) {
  const TrainOptions& o = run.options;
  if (fs::exists(o.model.directory)) check_model_directory(o.model.directory);
  run.tokenizer_directory = o.model.tokenizer.empty() ? o.model.directory : o.model.tokenizer;
  if (run.tokenizer_directory.empty()) return;
  check(fs::exists(run.tokenizer_directory), ErrorCode::kDataLoss,
        o.model.tokenizer.empty() ? "--model " : "--tokenizer ", run.tokenizer_directory,
        ": no such directory", how_to_fetch(run.tokenizer_directory));
  const bool needed =
      !o.data.train_file.empty() || !o.data.validation_file.empty() || !o.model.tokenizer.empty();
  const fs::path directory = run.tokenizer_directory;
  if (!needed && !fs::exists(directory / "tokenizer.json")) {
    run.tokenizer_directory.clear();
    return;
  }
  run.tokenizer = Tokenizer::load(run.tokenizer_directory);
}

void make_model(Prepared& run, int64_t num_labels, const std::string& base) {
  const ModelOptions& model = run.options.model;
  const ProgramOptions program{.own_operators = model.program_operators == ProgramOperators::kAuto,
                               .tensor_rules = model.program_tensor_rules,
                               .report = model.program_report};
  run.model = run.imported.empty() ? run.language_model.make(run.head(), num_labels)
                                   : make_imported(run.imported, run.head(), num_labels, program);
  run.adapter = add_adapters(run.model, run.options.lora,
                             {.base_model = base,
                              .task_type = run.task == Task::kCausal ? "CAUSAL_LM" : "SEQ_CLS",
                              .fan_in_fan_out = run.config().model_type == "gpt2"});
  add_update_rules(run.model, run.options.training);
}

// Refuses options that need a built-in family.
void check_imported(const TrainOptions& o) {
  check(!o.model.resize_embeddings, ErrorCode::kInvalidArgument,
        "--resize_embeddings: exported programs have a fixed vocabulary; resize the model before "
        "it is exported");
}

void read_model_config(Prepared& run) {
  const TrainOptions& o = run.options;
  const std::string& named = o.model.directory.empty() ? o.model.config : o.model.directory;
  if (has_program(named)) {
    check_imported(o);
    run.imported = named;
    run.language_model = described_by(named);
    return;
  }
  check(o.model.program_tensor_rules.empty(), ErrorCode::kInvalidArgument,
        "--program_tensor_rules: ", named, " holds no exported program; leave the flag out");
  if (!o.model.directory.empty()) {
    check_model_directory(o.model.directory, how_to_fetch(o.model.directory));
    run.language_model = LanguageModel::from_directory(o.model.directory);
  } else {
    run.language_model = LanguageModel::from_name(o.model.config);
    DecoderConfig& config = run.language_model.config();
    if (run.tokenizer && config.trial) {
      config.vocabulary = run.tokenizer->size();
      config.bos_token = run.tokenizer->bos_id();
      config.eos_token = run.tokenizer->eos_id();
      config.pad_token = run.tokenizer->pad_id();
      run.notices.push_back(concat(
          o.model.config, " takes the tokenizer's vocabulary: ", config.vocabulary, " tokens"));
    }
  }
  run.language_model.validate();
}

DataLoaderOptions Prepared::loader_options(const Communicator& data, bool training) const {
  const TrainOptions& o = options;
  const bool on_gpu = data.device().is_cuda();
  const bool padded =
      o.data.packing || o.data.pad_to_max_length || o.data.label_padding == LabelPadding::kInclude;
  const std::optional<int64_t> tokenizer_pad = tokenizer ? tokenizer->pad_id() : std::nullopt;
  return {.micro_batch_size = training ? o.training.per_device_train_batch_size
                                       : o.training.per_device_eval_batch_size,
          .accumulation_steps = training ? o.training.gradient_accumulation_steps : 1,
          .data_rank = data.rank(),
          .data_size = data.size(),
          .shuffle = training && o.data.shuffle,
          .seed = o.training.seed,
          .padding_side = o.data.padding_side,
          .pad_id = config().pad_token.value_or(tokenizer_pad.value_or(0)),
          .pad_to = o.data.pad_to_max_length || o.data.packing ? o.data.max_seq_length : 0,
          .pad_to_multiple_of = o.data.pad_to_multiple_of,
          .group_by_length = o.data.group_by_length,
          .packing = o.data.packing,
          .padding_free = o.data.padding_free == PaddingFree::kAuto
                              ? on_gpu && !padded && imported.empty()
                              : o.data.padding_free == PaddingFree::kTrue,
          .pad_token = config().pad_token,
          .supervise_padding = o.data.label_padding == LabelPadding::kInclude,
          .always_attention_mask = task == Task::kClassification && !config().pad_token,
          .mark_padding = imported.empty() && config().watches_routers(),
          .pinned = on_gpu};
}

Prepared prepare(const TrainOptions& options, Program program) {
  Prepared run;
  run.options = options;
  run.program = program;
  run.task = task_of(program);
  run.train_path = options.data.random_rows > 0      ? "random rows"
                   : !options.data.train_ids.empty() ? options.data.train_ids
                                                     : options.data.train_file;
  const std::string& base =
      options.model.directory.empty() ? options.model.config : options.model.directory;
  take_from_hub_cache(run);
  prepare_tokenizer(run);
  prepare_config(run);
  prepare_data(run);
  if (options.output.generation && run.chat_template) {
    run.chats = read_held_out_chats(options, *run.tokenizer, *run.chat_template);
    if (run.chats->too_long > 0) {
      run.notices.push_back(
          concat(run.chats->too_long, " held-out chats leave no room for an answer: not scored"));
    }
  } else if (options.output.generation) {
    run.questions = read_questions(options, *run.tokenizer);
  }
  const int64_t positions = run.config().max_positions;
  int64_t wanted = std::min(options.data.max_seq_length,
                            std::max(run.train.longest(), run.validation.longest()));
  if (!options.data.packing) {  // packed rows have positions of their own
    if (options.data.pad_to_max_length) wanted = options.data.max_seq_length;
    const int64_t multiple = options.data.pad_to_multiple_of;
    wanted = (wanted + multiple - 1) / multiple * multiple;
  }
  check(positions == 0 || wanted <= positions, ErrorCode::kInvalidArgument, "--max_seq_length ",
        options.data.max_seq_length, ": model ", run.config().name, " has ", positions,
        " positions");
  make_model(run, run.train.num_labels(), base);
  if (options.data.label_padding != LabelPadding::kInclude)
    run.supervised_share = supervised_share(run.train);
  return run;
}

}  // namespace tessera::programs
