// SPDX-License-Identifier: MIT
#pragma once
// Two steps of a tiny model configured by a DeepSpeed file, in this process.
#include <fstream>
#include <string>
#include <vector>

#include "lib/run/program.h"
#include "tessera/core/error.h"
#include "tessera/core/json.h"
#include "tests/support/temp_dir.hpp"

namespace tessera::programs {

inline std::vector<std::string> strings(const Json& object, const char* key) {
  std::vector<std::string> texts;
  if (const auto list = object.find(key)) {
    for (const Json& item : list->items()) texts.push_back(item.as_string());
  }
  return texts;
}

inline constexpr const char* kModel =
    R"({"model_type": "bloom", "vocab_size": 32, "hidden_size": 16,
  "n_layer": 2, "n_head": 4, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 3})";

// A model of hidden size 16 and rows of ids, in its own folder.
class DeepSpeedJob {
 public:
  DeepSpeedJob() {
    dir_.write("model.json", kModel);
    std::string rows;
    for (int i = 0; i < 16; ++i) rows += concat("{\"input_ids\": [5, 6, ", 7 + i, ", 8]}\n");
    dir_.write("ids.jsonl", rows);
  }
  void write(const std::string& name, const std::string& text) const { dir_.write(name, text); }
  std::string path(const std::string& name) const { return dir_.path(name); }

  std::vector<std::string> arguments(const Json& sample, const std::string& file,
                                     const std::string& output) const {
    std::vector<std::string> all{"prog",
                                 "--model_config",
                                 path("model.json"),
                                 "--train_ids",
                                 path("ids.jsonl"),
                                 "--max_steps",
                                 "2",
                                 "--ranks",
                                 std::to_string(sample.get("ranks", 2)),
                                 "--output_dir",
                                 path(output),
                                 "--save_final",
                                 "false",
                                 "--deepspeed",
                                 file};
    for (const std::string& flag : strings(sample, "flags")) all.push_back(flag);
    return all;
  }

 private:
  TempDir dir_;
};

inline int run(std::vector<std::string> arguments) {
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  return run_program(finetune(Program::kText, "prog", ""), static_cast<int>(argv.size()),
                     argv.data());
}

}  // namespace tessera::programs
