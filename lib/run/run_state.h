// SPDX-License-Identifier: MIT
#pragma once
// What a checkpoint of a program's run remembers beside its tensors (Manifest::run).
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tessera/data/data_loader.h"
#include "tessera/train/trainer_state.h"

namespace tessera::programs {

// Name and value of everything that the rows and their order follow from.
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
  DataIdentity of;          // the data
  DataIdentity evaluation;  // RunTask::evaluation_identity()
  struct Best {             // of the checkpoints of steps that were evaluated
    int64_t step = 0;
    double metric = 0;
  };
  std::optional<Best> best;
  // Of the run and of what resumes it, drawn when it begins; "": of an earlier version.
  std::string id;
  std::string settings;  // FlagSet::config_json()
  std::string model;     // its config.json for transformers
  std::string adapter;   // adapter_config.json; "": the checkpoint has every parameter
  std::string base;      // RunTask::base()

  std::string to_json() const;
  // Throws Error(kDataLoss) for what to_json() does not write.
  static RunState from_json(const std::string& text, const std::string& origin);

  // "--train_slice 0:50 -> 50:100" for what is not the same now; empty: the data goes on.
  // What checkpoints of older versions do not hold is taken for the same.
  std::vector<std::string> other_data(const DataIdentity& now) const;
  // The same of what is evaluated, and with what.
  std::vector<std::string> other_evaluation(const DataIdentity& now) const;
  // The same of the command line's values.
  std::vector<std::string> other_settings(const std::string& now) const;
  // Whether a run of this id has saved this state as its best one.
  bool is_best_of(const std::string& run, const Best& wanted) const;
};

// Whether `now` is better than the best so far, a smaller metric where `less`. What is no number is
// never better.
bool is_better(const RunState::Best& now, const std::optional<RunState::Best>& best, bool less);

}  // namespace tessera::programs
