// SPDX-License-Identifier: MIT
#include "benchmarks/data/synthetic_text.h"

#include <cmath>

namespace tessera::benchmarks {
namespace {

constexpr const char* kSyllables[] = {"ba",  "ten", "ro",  "sil", "mar", "che", "tion", "ex",
                                      "qui", "os",  "pre", "der", "lan", "ing", "vu",   "ka"};
constexpr size_t kCommonWords = 20'000;
constexpr int64_t kContextWords = 120, kQuestionsOfContext = 5;

std::string numbered_context(SyntheticText& text, int64_t number) {
  return std::to_string(number) + " " + text.words(kContextWords) + ".";
}

}  // namespace

SyntheticText::SyntheticText(uint64_t seed) : random_(seed) {
  for (size_t i = 0; i < kCommonWords; ++i) common_.push_back(new_word());
}

std::string SyntheticText::new_word() {
  std::string word;
  for (uint64_t left = 1 + random_() % 4; left > 0; --left) word += kSyllables[random_() % 16];
  return word;
}

std::string SyntheticText::words(int64_t count) {
  std::string text;
  for (int64_t i = 0; i < count; ++i) {
    if (i > 0) text += random_() % 12 == 0 ? ", " : " ";
    const double uniform = static_cast<double>(random_() >> 11) * 0x1p-53;
    const double rank = std::pow(static_cast<double>(kCommonWords), uniform) - 1;
    switch (random_() % 25) {
      case 0:
        text += std::to_string(random_() % 1'000'000);
        break;
      case 1:
        text += new_word() + new_word();  // a name
        break;
      default:
        text += common_[static_cast<size_t>(rank)];
    }
  }
  return text;
}

void write_squad(std::ostream& out, int64_t questions) {
  SyntheticText text;
  out << R"({"version": "1.1", "data": [{"title": "synthetic", "paragraphs": [)";
  for (int64_t done = 0; done < questions;) {
    const std::string context = numbered_context(text, done);
    out << (done > 0 ? ",\n" : "\n") << R"({"context": ")" << context << R"(", "qas": [)";
    for (int64_t i = 0; i < kQuestionsOfContext && done < questions; ++i, ++done) {
      const size_t begin = context.find(' ', context.size() * static_cast<size_t>(i + 1) / 7) + 1;
      const size_t end = context.find(' ', begin + 8);
      out << (i > 0 ? ", " : "") << R"({"id": ")" << done << R"(", "question": "What )"
          << text.words(9) << R"(?", "answers": [{"text": ")" << context.substr(begin, end - begin)
          << R"(", "answer_start": )" << begin << "}]}";
    }
    out << "]}";
  }
  out << "]}]}\n";
}

void write_lines(std::ostream& out, int64_t bytes) {
  SyntheticText text;
  for (int64_t number = 0; bytes > 0; ++number) {
    const std::string line = numbered_context(text, number) + "\n";
    out << line;
    bytes -= static_cast<int64_t>(line.size());
  }
}

}  // namespace tessera::benchmarks
