// SPDX-License-Identifier: MIT
// Output of --help, --help all and --help FLAG.
#include <algorithm>
#include <set>
#include <sstream>

#include "lib/core/file.h"
#include "lib/settings/train_flags.h"
#include "tessera/core/error.h"
#include "tests/support/messages.hpp"
#include "tests/support/test.hpp"
#include "tests/support/text.hpp"

namespace tessera::programs {
using tessera::test::has;

namespace {

std::vector<std::string> lines_of(const std::string& text) {
  std::istringstream in(text);
  std::vector<std::string> lines;
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

size_t widest(const std::string& text) {
  size_t width = 0;
  for (const std::string& line : lines_of(text)) width = std::max(width, line.size());
  return width;
}

struct Asked {
  TrainOptions options;
  FlagSet flags{"tessera-finetune-classification", "Trains things under any strategy."};

  explicit Asked(Program program, const std::vector<std::string>& arguments = {}) {
    add_train_flags(flags, options, program, /*find=*/nullptr);
    flags.show_one_screen("--model DIR --train_file F --output_dir out");
    flags.parse(arguments);
  }
};

constexpr Program kPrograms[] = {Program::kSquad, Program::kText, Program::kClassification,
                                 Program::kChat};

TEST_CASE("the text of --help is one screen: twenty flags with type and default, and an example") {
  for (const Program program : kPrograms) {
    const std::string text = Asked(program, {"--help"}).flags.help();
    const std::vector<std::string> lines = lines_of(text);
    INFO(text);
    CHECK(lines.size() == 23);
    CHECK(widest(text) <= 80);
    CHECK(std::ranges::count_if(lines, [](const auto& l) { return l.starts_with("--"); }) == 20);
    CHECK(text.find("...", text.find('\n')) == std::string::npos);  // no text is truncated
    CHECK(has(text, "--learning_rate               float  [5e-05]  peak learning rate\n"));
    CHECK(has(text, "--strategy                    choice"));
    CHECK(lines.back().starts_with("E.g. tessera-finetune-classification --model DIR"));
    CHECK(has(lines.front(), "--help all|FLAG, --version"));
  }
}

TEST_CASE("the text of --help all has every flag in its section, within 100 columns") {
  for (const Program program : kPrograms) {
    for (const auto& arguments : {std::vector<std::string>{"--help", "all"}, {"--help=all"}}) {
      const std::string text = Asked(program, arguments).flags.help();
      CHECK(widest(text) <= 100);
      for (const settings::Setting& setting : settings::table()) {
        const std::string row = concat("\n  --", setting.name);
        const bool listed =
            text.find(row + " ") != std::string::npos || text.find(row + "\n") != std::string::npos;
        const bool known = std::ranges::any_of(settings::table(), [&](const auto& other) {
          return std::string(other.name) == setting.name && other.is_of(program);
        });
        INFO(setting.name);
        CHECK(listed == known);
      }
      CHECK(has(text, "\nStrategy and precision:\n"));
    }
  }
}

TEST_CASE(
    "the text of --help FLAG says type, default, values, what it needs and where the name is "
    "from") {
  for (const char* spelling : {"learning_rate", "--learning_rate", "learning-rate"}) {
    CHECK(Asked(Program::kText, {"--help", spelling}).flags.help() ==
          "--learning_rate  (Training)\n"
          "  peak learning rate\n"
          "  Type: float\n"
          "  Default: 5e-05\n"
          "  Values: at least 0 and at most 1e+38\n"
          "  Changes: numbers (losses and weights)\n"
          "  Name: from TrainingArguments of Hugging Face\n");
  }
  const auto about = [](const std::string& flag) {
    return Asked(Program::kSquad, {"--help", flag}).flags.help();
  };
  CHECK(has(about("loss_scale"), "no effect: only --dtype fp16 scales the loss"));
  CHECK(has(about("reshard_after_forward"), "it belongs to fsdp"));
  CHECK(has(about("strategy"), "Type: one of single, ddp, zero1"));
  CHECK(has(about("lora_r"), "Name: from LoraConfig of PEFT"));
  CHECK(has(about("train_file"), "SQuAD v1.1 or v2 JSON"));
  const std::string unknown = error_of(ErrorCode::kInvalidArgument, [&] { about("lerning_rate"); });
  CHECK(has(unknown, "--learning_rate"));
}

TEST_CASE("a flag asks every program for its version, wherever it stands") {
  for (const auto& arguments :
       {std::vector<std::string>{"--version"}, {"--max_steps", "3", "--version"}}) {
    const Asked asked(Program::kText, arguments);
    CHECK(asked.flags.help_requested());
    CHECK(asked.flags.help().starts_with("tessera-finetune-classification "));
    CHECK(has(asked.flags.help(), "\nLibTorch "));
  }
  CHECK(has(Asked(Program::kText, {"--help", "all"}).flags.help(), "\n  --version  "));
  CHECK(has(Asked(Program::kText, {"--version", "--help"}).flags.help(), "Usage: "));
  CHECK_FALSE(Asked(Program::kText).flags.help_requested());
}

TEST_CASE("the text of --help all fits a narrower window") {
  HelpPage page{.program = "p", .summary = "Does things.", .example = "", .rows = {}};
  page.rows.push_back({.name = "strategy",
                       .section = "General",
                       .help = "how the model is spread over the ranks that train it together",
                       .default_value = "single",
                       .choices = {"single", "ddp", "zero1", "zero2", "zero3", "fsdp", "another"}});
  for (const size_t width : {60, 80, 100}) {
    CHECK(widest(all_sections(page, width)) <= width);
  }
  CHECK(all_sections(page) == all_sections(page, 100));
}

TEST_CASE("a flag behind --help is a topic only where it is the last word") {
  Asked asked(Program::kText, {"--help", "--max_steps", "3", "--output_dir", "out"});
  CHECK(asked.flags.help_requested());
  CHECK(asked.options.training.max_steps == 3);
  CHECK(has(asked.flags.help(), "Usage: "));
  CHECK(has(Asked(Program::kText, {"--max_steps", "3", "--help", "--seed"}).flags.help(),
            "--seed  (Training)"));
  CHECK_FALSE(Asked(Program::kText, {"--help", "false"}).flags.help_requested());
  CHECK(has(Asked(Program::kText, {"--help", "true"}).flags.help(), "Usage: "));
}

TEST_CASE("names that TrainingArguments have are marked as theirs, and no others") {
  std::set<std::string> theirs;
  for (const std::string& name : lines_of(read_file(TESSERA_TRAINING_ARGUMENTS, 1 << 20))) {
    theirs.insert(name);
  }
  for (const settings::Setting& setting : settings::table()) {
    INFO(setting.name);
    CHECK((setting.facts.name_of == settings::NameOf::kTrainingArguments) ==
          theirs.contains(setting.name));
  }
}

}  // namespace
}  // namespace tessera::programs
