#include <algorithm>
#include <map>
#include <sstream>

#include "tessera/data/squad.h"

namespace tessera {
namespace {

// Lower case and punctuation in ASCII only; words other than the articles.
std::vector<std::string> normalised_words(const std::string& text) {
  std::string plain;
  for (const char c : text) {
    const bool punctuation = (c >= '!' && c <= '/') || (c >= ':' && c <= '@') ||
                             (c >= '[' && c <= '`') || (c >= '{' && c <= '~');
    if (!punctuation) plain += c >= 'A' && c <= 'Z' ? static_cast<char>(c | 0x20) : c;
  }
  std::istringstream in(plain);
  std::vector<std::string> words;
  for (std::string word; in >> word;) {
    if (word != "a" && word != "an" && word != "the") words.push_back(word);
  }
  return words;
}

double f1_of(const std::vector<std::string>& predicted, const std::vector<std::string>& answer) {
  if (predicted.empty() || answer.empty()) return predicted.empty() && answer.empty() ? 1.0 : 0.0;
  std::map<std::string, int> left;
  for (const std::string& word : answer) ++left[word];
  double common = 0;
  for (const std::string& word : predicted) {
    if (left[word]-- > 0) ++common;
  }
  if (common == 0) return 0.0;
  const double precision = common / static_cast<double>(predicted.size());
  const double recall = common / static_cast<double>(answer.size());
  return 2 * precision * recall / (precision + recall);
}

}  // namespace

bool squad_exact_match(const std::string& prediction, const std::vector<std::string>& answers) {
  const auto predicted = normalised_words(prediction);
  if (answers.empty()) return predicted.empty();
  return std::any_of(answers.begin(), answers.end(), [&](const std::string& answer) {
    return normalised_words(answer) == predicted;
  });
}

double squad_f1(const std::string& prediction, const std::vector<std::string>& answers) {
  const auto predicted = normalised_words(prediction);
  if (answers.empty()) return predicted.empty() ? 1.0 : 0.0;
  double best = 0;
  for (const std::string& answer : answers) {
    best = std::max(best, f1_of(predicted, normalised_words(answer)));
  }
  return best;
}

}  // namespace tessera
