// SPDX-License-Identifier: MIT
// --cache_dir of the fine-tuning programs.
#include "lib/run/cached_rows.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

#include "lib/interop/foreign_flags.h"
#include "tessera/core/error.h"
#include "tests/support/temp_dir.hpp"
#include "tests/support/test.hpp"

using namespace tessera;
using namespace tessera::programs;

namespace {

std::string data_path(const std::string& name) {
  return std::string(TESSERA_EXAMPLES_DATA) + "/" + name;
}

TrainOptions options_for(const TempDir& folder, const std::string& train_file) {
  TrainOptions options;
  options.model.config = "bloom-tiny";
  options.model.tokenizer = data_path("tokenizer");
  options.data.train_file = train_file;
  options.data.cache_dir = folder.path("cache");
  return options;
}

bool same(const TokenTable& a, const TokenTable& b) {
  if (a.size() != b.size() || a.num_labels() != b.num_labels()) return false;
  for (int64_t i = 0; i < a.size(); ++i) {
    const TokenRow x = a.row(i), y = b.row(i);
    if (x.label != y.label || !std::ranges::equal(x.input_ids, y.input_ids)) return false;
  }
  return true;
}

void check_same(const Prepared& a, const Prepared& b) {
  CHECK(same(a.train, b.train));
  CHECK(same(a.validation, b.validation));
  CHECK(a.notices == b.notices);
  CHECK(a.dataset_sha256 == b.dataset_sha256);
  CHECK(a.train_hash == b.train_hash);
  CHECK(a.validation_hash == b.validation_hash);
  CHECK(a.config().labels == b.config().labels);
  REQUIRE(a.data_files.size() == b.data_files.size());
  for (size_t i = 0; i < a.data_files.size(); ++i) {
    const FileFacts x{a.data_files[i], {}, {}, "", ""}, y{b.data_files[i], {}, {}, "", ""};
    CHECK(x.pack() == y.pack());
    CHECK(a.data_files[i].file == b.data_files[i].file);
    CHECK(a.data_files[i].role == b.data_files[i].role);
  }
}

int cached_files(const TempDir& folder) {
  int count = 0;
  for (const auto& file : std::filesystem::directory_iterator(folder.path("cache"))) {
    count += file.path().extension() == ".tokens";
  }
  return count;
}

}  // namespace

TEST_CASE("a file's rows are found again with all that was said when they were made") {
  const TempDir folder;
  std::string text;
  for (int i = 0; i < 40; ++i) text += i % 2 ? "good,some words\n" : "bad,other words\n";
  const std::string file = folder.write("labels.csv", "label,text\n" + text + "good,\n");
  TrainOptions options = options_for(folder, file);
  options.data.validation_file = file;
  const Prepared made = prepare(options, Program::kClassification);
  const Prepared found = prepare(options, Program::kClassification);
  options.data.cache_dir = "none";
  const Prepared plain = prepare(options, Program::kClassification);
  check_same(made, plain);
  check_same(found, plain);
  CHECK(plain.data_files[0].skipped_rows == 1);
  CHECK(plain.train.num_labels() == 2);
  CHECK_FALSE(plain.dataset_sha256.empty());
  CHECK(cached_files(folder) >= 1);
}

TEST_CASE("another content, option or tokenizer makes other rows; a torn file is made again") {
  const TempDir folder;
  TrainOptions options = options_for(folder, data_path("squad_sample.json"));
  const Prepared all = prepare(options, Program::kSquad);
  CHECK(cached_files(folder) == 1);
  options.data.max_seq_length = 128;
  const Prepared shorter = prepare(options, Program::kSquad);
  CHECK(cached_files(folder) == 2);
  CHECK(shorter.train.longest() <= 128);
  std::filesystem::copy(data_path("tokenizer"), folder.path("tokenizer"));
  std::ofstream(folder.path("tokenizer") + "/tokenizer.json", std::ios::app) << " ";
  options.model.tokenizer = folder.path("tokenizer");
  prepare(options, Program::kSquad);
  CHECK(cached_files(folder) == 3);
  for (const auto& file : std::filesystem::directory_iterator(folder.path("cache"))) {
    if (file.path().extension() != ".tokens") continue;
    // Replaced by truncated copies, since the files themselves are mapped.
    std::filesystem::copy_file(file.path(), folder.path("torn"));
    std::filesystem::resize_file(folder.path("torn"), 1000);
    std::filesystem::rename(folder.path("torn"), file.path());
  }
  check_same(prepare(options, Program::kSquad), shorter);
}

TEST_CASE("the date is part of the key where the chat template writes one") {
  const TempDir folder;
  TrainOptions options =
      options_for(folder, folder.write("chats.jsonl", R"({"prompt": "Hi", "completion": "Ho"})"));
  options.data.max_seq_length = 128;
  int expected = 0;
  for (const bool writes : {true, false}) {
    options.data.chat_template = folder.write(
        writes ? "dated.jinja" : "plain.jinja",
        std::string("{% for m in messages %}{% generation %}{{ m.content }} {% endgeneration %}") +
            (writes ? "{{ strftime_now('%d %b %Y') }}" : "") + "{% endfor %}");
    std::string hash;
    for (const char* date : {"2026-01-31", "2026-02-01", "2026-01-31"}) {
      options.data.template_date = date;
      const Prepared run = prepare(options, Program::kChat);
      const bool new_rows = hash != run.train_hash;
      CHECK(new_rows == (writes || hash.empty()));
      expected += new_rows && (expected < 2 || !writes);
      CHECK(cached_files(folder) == expected);
      CHECK(run.train_hash.starts_with("1 rows, XXH3 "));
      hash = run.train_hash;
    }
  }
  CHECK(expected == 3);
}

TEST_CASE("every data option that rows depend on is part of their key") {
  // Settings that choose files or rows, need none, or apply to finished rows.
  const std::set<std::string> others{
      "train_file",        "validation_file",    "train_ids",       "validation_ids",
      "train_slice",       "validation_slice",   "shuffle",         "padding_side",
      "pad_to_max_length", "pad_to_multiple_of", "group_by_length", "packing",
      "label_padding",     "padding_free",       "cache_dir",       "random_rows",
      "random_row_length"};
  for (const Program program : {Program::kSquad, Program::kClassification}) {
    TrainOptions plain;
    FlagSet flags("prog", "");
    add_train_flags(flags, plain, program, find_foreign);
    const std::string help = flags.help("all");
    std::istringstream lines(help.substr(help.find("\nData:\n") + 7));
    int count = 0;
    for (std::string line; std::getline(lines, line) && !line.empty();) {
      if (!line.starts_with("  --")) continue;  // the end of a row
      ++count;
      const std::string name = line.substr(4, line.find(' ', 4) - 4);
      bool part = others.contains(name);
      for (const char* value : {"true", "false", "77", "all", "x"}) {
        TrainOptions changed;
        FlagSet set("prog", "");
        add_train_flags(set, changed, program, find_foreign);
        try {
          set.parse({"--" + name, value});
        } catch (const Error&) {
          continue;
        }
        part = part || data_recipe(changed) != data_recipe(plain);
      }
      INFO(name);
      CHECK(part);
    }
    CHECK(count > 8);
  }
}
