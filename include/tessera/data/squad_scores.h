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

/// Whose official script scores the answers: v1.1's or v2.0's.
enum class SquadVersion { k1, k2 };

/// Measures of one answer.
struct SquadScore {
  double exact_match = 0, f1 = 0;  ///< in [0, 1]
};

/// The best of each measure over the answers. Where a text normalises to nothing, v1.1 gives no F1;
/// v2.0 gives 1 if both do, ignores such answers, and wants nothing where no answer is left. v1.1
/// knows no question without answers: Error(kInvalidArgument).
SquadScore squad_score(std::string_view prediction, std::span<const std::string> answers,
                       SquadVersion version);

/// What a model answered.
struct SquadPrediction {
  std::string text;                  ///< empty: no answer
  double no_answer_probability = 0;  ///< v2.0: above the threshold the answer counts as empty
};

/// Means over questions.
struct SquadMeans {
  double exact_match = 0, f1 = 0;  ///< percent
  int64_t total = 0;               ///< questions
};

/// Predictions of a greater no-answer probability count as empty.
struct SquadThreshold {
  double best = 0;       ///< the measure with it, percent
  double threshold = 0;  ///< least value that counts as an answer
};

/// What the official scripts print.
struct SquadEvaluation {
  SquadMeans all;  ///< over all questions
  /// v2.0; absent where there is no such question.
  std::optional<SquadMeans> has_answer, no_answer;
  std::optional<SquadThreshold> best_exact, best_f1;  ///< v2.0

  std::string to_json()
      const;  ///< with the scripts' keys: exact_match or exact, f1, HasAns_f1, ...
};

/// One prediction for each question, whose answers are answers[i]. no_answer_threshold is the
/// official option --na-prob-thresh (v2.0). Throws Error(kInvalidArgument) when the numbers differ
/// or are 0.
SquadEvaluation evaluate_squad(std::span<const std::vector<std::string>> answers,
                               std::span<const SquadPrediction> predictions, SquadVersion version,
                               double no_answer_threshold = 1);

}  // namespace tessera
