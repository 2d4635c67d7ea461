// SPDX-License-Identifier: MIT
#pragma once
// State of a program's run in a checkpoint, beside its tensors (Manifest::run).
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tessera/data/data_loader.h"
#include "tessera/train/trainer_state.h"

namespace tessera::programs {

// Names and values that determine the rows and their order.
using DataIdentity = std::vector<std::pair<std::string, std::string>>;

inline constexpr const char* kTrainingData = "the training data (SHA-256)";
inline constexpr const char* kTrainingRows = "the training rows";
inline constexpr const char* kValidationRows = "the validation rows";
inline constexpr const char* kTokenizer = "the tokenizer (XXH3)";
inline constexpr const char* kChatTemplate = "the chat template (XXH3)";
inline constexpr const char* kTemplateDate = "the chat template's date";

struct RunState {
  TrainerState trainer;
  DataLoaderState data;
  DataIdentity of;          // identity of the training data
  DataIdentity evaluation;  // RunTask::evaluation_identity()
  struct Best {             // of steps with both evaluation and checkpoint
    int64_t step = 0;
    double metric = 0;
  };
  std::optional<Best> best;
  // Id of the run and of its resumptions, drawn at its start; "": from an earlier version.
  std::string id;
  std::string fp8_layers;  // of --fp8 auto, which takes them from here again; "": another --fp8
  std::string settings;    // FlagSet::config_json()
  std::string model;       // config.json for transformers
  std::string names;       // RunTask::stored_names(); "": those of a built-in family
  std::string adapter;     // adapter_config.json; "": the checkpoint has all parameters
  std::string base;        // RunTask::base()

  std::string to_json() const;
  // Throws Error(kDataLoss) for text that to_json() cannot have written.
  static RunState from_json(const std::string& text, const std::string& origin);

  // Differences such as "--train_slice 0:50 -> 50:100"; empty: the same data. Fields missing in
  // checkpoints of older versions count as equal.
  std::vector<std::string> other_data(const DataIdentity& now) const;
  // Differences of the evaluation's data and settings.
  std::vector<std::string> other_evaluation(const DataIdentity& now) const;
  // Differences of the command line's values.
  std::vector<std::string> other_settings(const std::string& now) const;
  // True if a run with this id saved this state as its best one.
  bool is_best_of(const std::string& run, const Best& wanted) const;
};

// True if `now` is better than the best so far; less: smaller is better. NaN is never better.
bool is_better(const RunState::Best& now, const std::optional<RunState::Best>& best, bool less);

}  // namespace tessera::programs
