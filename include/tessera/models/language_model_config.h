#pragma once
// What the configurations of all language models have in common.
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace tessera {

enum class ModelHead { kCausal, kClassification };

struct LanguageModelConfig {
  std::string name;
  int64_t vocabulary = 1024;
  int64_t hidden = 64;
  int64_t layers = 2;
  int64_t heads = 4;
  double initializer_range = 0.02;
  bool tied_head = true;      // tie_word_embeddings
  int64_t max_positions = 0;  // longest sequence that has positions; 0: any
  // A preset made for trials, without published weights: any tokenizer's vocabulary will do.
  bool trial = false;
  std::optional<int64_t> bos_token, eos_token, pad_token;
  std::vector<std::string> labels;   // names of the classes; empty when the file has none
  std::vector<std::string> notices;  // what a program should tell its user once

 protected:
  void validate_common() const;  // what validate() of every architecture begins with
};

}  // namespace tessera
