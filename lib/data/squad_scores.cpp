// SPDX-License-Identifier: MIT
#include "tessera/data/squad_scores.h"

#include <absl/container/flat_hash_map.h>

#include <algorithm>
#include <numeric>

#include "lib/data/squad_words.h"
#include "lib/data/unicode.h"
#include "tessera/core/error.h"
#include "tessera/core/json.h"

namespace tessera {
namespace {

bool is_punctuation(uint32_t code) {  // Python's string.punctuation
  return (code >= '!' && code <= '/') || (code >= ':' && code <= '@') ||
         (code >= '[' && code <= '`') || (code >= '{' && code <= '~');
}

}  // namespace

std::vector<std::string> squad_words(std::string_view text) {
  const std::string lower = python_lower(text);
  std::vector<std::string> words(1);
  std::string run;  // letters and digits; an article becomes a space
  const auto end_run = [&] {
    if (run == "a" || run == "an" || run == "the") {
      words.emplace_back();
    } else {
      words.back() += run;
    }
    run.clear();
  };
  for (size_t at = 0; at < lower.size();) {
    const CodePoint point = code_point_at(lower, at);
    at += point.length;
    if (is_punctuation(point.code)) continue;
    if (is_python_alnum(point.code)) {
      append_utf8(run, point.code);
      continue;
    }
    end_run();
    if (is_python_space(point.code)) {
      words.emplace_back();
    } else {
      append_utf8(words.back(), point.code);
    }
  }
  end_run();
  std::erase(words, "");
  return words;
}

namespace {

double f1_of(const std::vector<std::string>& predicted, const std::vector<std::string>& answer,
             SquadVersion version) {
  if (version == SquadVersion::k2 && (predicted.empty() || answer.empty())) {
    return predicted.empty() && answer.empty() ? 1 : 0;
  }
  absl::flat_hash_map<std::string_view, int64_t> left;
  for (const std::string& word : answer) ++left[word];
  double common = 0;
  for (const std::string& word : predicted) {
    if (left[word]-- > 0) ++common;
  }
  if (common == 0) return 0;
  const double precision = common / static_cast<double>(predicted.size());
  const double recall = common / static_cast<double>(answer.size());
  return 2 * precision * recall / (precision + recall);
}

// Means over the wanted questions; empty without any.
template <typename Wanted>
std::optional<SquadMeans> means_of(const std::vector<SquadScore>& scores, const Wanted& wanted) {
  SquadMeans means;
  for (size_t i = 0; i < scores.size(); ++i) {
    if (!wanted(i)) continue;
    means.exact_match += scores[i].exact_match;
    means.f1 += scores[i].f1;
    ++means.total;
  }
  if (means.total == 0) return std::nullopt;
  means.exact_match = 100 * means.exact_match / static_cast<double>(means.total);
  means.f1 = 100 * means.f1 / static_cast<double>(means.total);
  return means;
}

SquadThreshold best_threshold(const std::vector<SquadScore>& scores, double SquadScore::*measure,
                              std::span<const std::vector<std::string>> answers,
                              std::span<const SquadPrediction> predictions) {
  std::vector<size_t> order(scores.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, {},
                           [&](size_t i) { return predictions[i].no_answer_probability; });
  // At the lowest threshold no question is answered; raising it answers one after another.
  double score = static_cast<double>(
      std::ranges::count_if(answers, [](const auto& texts) { return texts.empty(); }));
  SquadThreshold best{score, 0};
  for (const size_t i : order) {
    if (!answers[i].empty()) {
      score += scores[i].*measure;
    } else if (!predictions[i].text.empty()) {
      score -= 1;
    }
    if (score > best.best) best = {score, predictions[i].no_answer_probability};
  }
  best.best = 100 * best.best / static_cast<double>(scores.size());
  return best;
}

}  // namespace

SquadScore squad_score(std::string_view prediction, std::span<const std::string> answers,
                       SquadVersion version) {
  check(version == SquadVersion::k2 || !answers.empty(), ErrorCode::kInvalidArgument,
        "SQuAD v1.1 has no questions without answers; score as v2.0");
  const std::vector<std::string> predicted = squad_words(prediction);
  std::vector<std::vector<std::string>> wanted;
  for (const std::string& answer : answers) wanted.push_back(squad_words(answer));
  if (version == SquadVersion::k2) {
    std::erase_if(wanted, [](const auto& words) { return words.empty(); });
    if (wanted.empty()) wanted.emplace_back();
  }
  SquadScore best;
  for (const std::vector<std::string>& words : wanted) {
    if (words == predicted) best.exact_match = 1;
    best.f1 = std::max(best.f1, f1_of(predicted, words, version));
  }
  return best;
}

SquadEvaluation evaluate_squad(std::span<const std::vector<std::string>> answers,
                               std::span<const SquadPrediction> predictions, SquadVersion version,
                               double no_answer_threshold) {
  check(!answers.empty() && answers.size() == predictions.size(), ErrorCode::kInvalidArgument,
        predictions.size(), " predictions for ", answers.size(),
        " questions; expected one for each, and at least one");
  std::vector<SquadScore> raw, scores;
  for (size_t i = 0; i < answers.size(); ++i) {
    raw.push_back(squad_score(predictions[i].text, answers[i], version));
    const bool emptied =
        version == SquadVersion::k2 && predictions[i].no_answer_probability > no_answer_threshold;
    const double right = answers[i].empty() ? 1 : 0;
    scores.push_back(emptied ? SquadScore{right, right} : raw.back());
  }
  SquadEvaluation result;
  result.all = *means_of(scores, [](size_t) { return true; });
  if (version == SquadVersion::k1) return result;
  result.has_answer = means_of(scores, [&](size_t i) { return !answers[i].empty(); });
  result.no_answer = means_of(scores, [&](size_t i) { return answers[i].empty(); });
  result.best_exact = best_threshold(raw, &SquadScore::exact_match, answers, predictions);
  result.best_f1 = best_threshold(raw, &SquadScore::f1, answers, predictions);
  return result;
}

std::string SquadEvaluation::to_json() const {
  JsonWriter json(/*indent=*/2);
  json.begin_object();
  if (!best_exact) {
    json.field("exact_match", all.exact_match).field("f1", all.f1);
    return json.end_object().text();
  }
  const auto means = [&](const std::string& prefix, const SquadMeans& of) {
    json.field(prefix + "exact", of.exact_match).field(prefix + "f1", of.f1);
    json.field(prefix + "total", of.total);
  };
  means("", all);
  if (has_answer) means("HasAns_", *has_answer);
  if (no_answer) means("NoAns_", *no_answer);
  json.field("best_exact", best_exact->best).field("best_exact_thresh", best_exact->threshold);
  json.field("best_f1", best_f1->best).field("best_f1_thresh", best_f1->threshold);
  return json.end_object().text();
}

}  // namespace tessera
