// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Exact match and F1 of answers, as SQuAD's official scripts (evaluate-v1.1.py, evaluate-v2.0.py)
/// compute them.
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

/// Official script that scores the answers: v1.1's or v2.0's.
enum class SquadVersion { k1, k2 };

/// Scores of one answer.
struct SquadScore {
  double exact_match = 0, f1 = 0;  ///< in [0, 1]
};

/// Best score over the answers, separately for each measure. For a text that normalises to nothing
/// v1.1 gives F1 0. v2.0 gives 1 if both texts do, ignores such answers, and expects no answer if
/// none is left. A question without answers is Error(kInvalidArgument) under v1.1.
SquadScore squad_score(std::string_view prediction, std::span<const std::string> answers,
                       SquadVersion version);

/// A model's answer.
struct SquadPrediction {
  std::string text;                  ///< empty: no answer
  double no_answer_probability = 0;  ///< v2.0: above the threshold the answer counts as empty
};

/// Mean scores over questions.
struct SquadMeans {
  double exact_match = 0, f1 = 0;  ///< percent
  int64_t total = 0;               ///< number of questions
};

/// Best no-answer threshold: predictions with a greater no-answer probability count as empty.
struct SquadThreshold {
  double best = 0;       ///< the measure at that threshold, percent
  double threshold = 0;  ///< highest no-answer probability that counts as an answer
};

/// Output of the official scripts.
struct SquadEvaluation {
  SquadMeans all;  ///< over all questions
  /// v2.0; absent without such questions.
  std::optional<SquadMeans> has_answer, no_answer;
  std::optional<SquadThreshold> best_exact, best_f1;  ///< v2.0

  std::string to_json() const;  ///< keys of the scripts: exact_match or exact, f1, HasAns_f1, ...
};

/// Scores one prediction per question; answers[i] are the answers of question i.
/// no_answer_threshold: the official option --na-prob-thresh (v2.0). Throws Error(kInvalidArgument)
/// if the counts differ or are 0.
SquadEvaluation evaluate_squad(std::span<const std::vector<std::string>> answers,
                               std::span<const SquadPrediction> predictions, SquadVersion version,
                               double no_answer_threshold = 1);

}  // namespace tessera
