// SPDX-License-Identifier: MIT
// DeepSpeed configuration files; tests/programs/deepspeed/cases.json has the expected results.
#include "lib/interop/deepspeed.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

#include "lib/interop/deepspeed_keys.h"
#include "lib/interop/foreign_flags.h"
#include "lib/settings/idle_flags.h"
#include "lib/tools/lint_ds/lint_ds.h"
#include "tessera/core/error.h"
#include "tests/programs/deepspeed_job.h"
#include "tests/programs/deepspeed_seen.h"
#include "tests/support/messages.hpp"
#include "tests/support/test.hpp"
#include "tests/support/text.hpp"

using namespace tessera;
using namespace tessera::programs;
using tessera::test::has;

namespace {

const std::string kFolder = TESSERA_DEEPSPEED_FILES "/";

Json cases(const char* kind) { return Json::parse_file(kFolder + "cases.json").at(kind); }

// Calls check(name, sample, file) for all `count` samples of a kind.
template <typename Check>
void for_each_sample(const std::string& kind, size_t count, const Check& check) {
  const auto samples = cases(kind.c_str()).members();
  REQUIRE(samples.size() == count);
  for (const auto& [name, sample] : samples) {
    INFO(name);
    check(name, sample, kFolder + kind + "/" + name + ".json");
  }
}

struct Resolved {
  TrainOptions options;
  FlagSet flags{"prog", ""};
  Resolved(const std::string& file, const std::vector<std::string>& arguments, int64_t ranks = 2) {
    add_train_flags(flags, options, Program::kText, find_foreign);
    flags.parse(arguments);
    apply_deepspeed(DeepSpeedFile::read(file), ranks, options, flags);
  }
  std::string notices() const {
    std::string all;
    for (const std::string& notice : flags.notices()) all += notice + "\n";
    return all;
  }
};

void check_values(const Json& config, const Json& expect) {
  for (const auto& [flag, value] : expect.members()) {
    const Json found = config.at(flag).at("value");
    INFO("--" << flag << " is " << found.dump() << ", expected " << value.dump());
    if (value.is_number()) {
      CHECK(found.as_double() == Approx(value.as_double()));
    } else {
      CHECK(found.dump() == value.dump());
    }
  }
}

}  // namespace

TEST_CASE("forty DeepSpeed files train two steps, and what their values do is seen") {
  const DeepSpeedJob job;
  for_each_sample("valid", 40, [&](const auto& name, const Json& sample, const auto& file) {
    REQUIRE(run(job.arguments(sample, file, name)) == 0);
    check_values(Json::parse_file(job.path(name) + "/config.json"), sample.at("expect"));
    check_seen(Seen(job.path(name)));
  });
}

TEST_CASE("what a DeepSpeed file says beyond values is said once") {
  for_each_sample("valid", 40, [](const auto&, const Json& sample, const auto& file) {
    const int64_t ranks = sample.get("ranks", 2);
    Resolved resolved(file, strings(sample, "flags"), ranks);
    for (const IdleFlag& idle : reset_idle_flags(resolved.flags, resolved.options, ranks)) {
      resolved.flags.add_notice(idle.text);
    }
    for (const std::string& part : strings(sample, "says")) {
      CHECK(has(resolved.notices(), part));
    }
  });
}

TEST_CASE("twenty DeepSpeed files are refused with file, line and remedy") {
  const DeepSpeedJob job;
  for_each_sample("invalid", 20, [](const auto&, const Json& sample, const auto& file) {
    const std::string said = error_of(ErrorCode::kInvalidArgument, [&] {
      Resolved(file, strings(sample, "flags"), sample.get("ranks", 2));
    });
    CHECK(said.starts_with(concat(file, ":", sample.at("line").as_int64(), ": ")));
    for (const std::string& part : strings(sample, "says")) CHECK(has(said, part));
    CHECK(said.find('\n') == std::string::npos);
  });
  // The programs exit with code 2 and write nothing.
  const std::string file = kFolder + "invalid/07-both-precisions.json";
  CHECK(run(job.arguments(cases("invalid").members().front().second, file, "refused")) == 2);
  CHECK_FALSE(std::filesystem::exists(job.path("refused")));
}

TEST_CASE("every value that a DeepSpeed file resolves has its origin") {
  const std::string file = kFolder + "valid/06-trainer-stage-2.json";
  const Resolved resolved(file, {"--learning_rate", "1e-3", "--model_config", "bloom-560m"});
  CHECK(resolved.flags.origin("strategy") == file + ":31");
  CHECK(resolved.flags.origin("learning_rate") == "command line, auto in " + file + ":16");
  CHECK(resolved.flags.origin("max_grad_norm") == "default, auto in " + file + ":41");
  CHECK(resolved.flags.origin("bucket_bytes") == "auto in " + file + ":38, hidden size 1024");
  CHECK(resolved.options.parallel.bucket_bytes == 1024 * 1024 * 4);
  CHECK(resolved.flags.origin("seed") == "default");
  const Resolved old(kFolder + "valid/22-defaults-of-0.16.json", {"--deepspeed_defaults", "0.16"});
  CHECK(old.flags.origin("max_grad_norm") == "default of DeepSpeed 0.16");
  CHECK(old.flags.origin("per_device_train_batch_size") ==
        kFolder + "valid/22-defaults-of-0.16.json:2, shared by 2 data-parallel ranks");
}

TEST_CASE("a DeepSpeed file trains as the flags that the lint says instead") {
  const DeepSpeedJob job;
  const std::string file = kFolder + "valid/31-pipeline.json";
  std::ostringstream out, err;
  REQUIRE(run_lint_ds({"--ranks", "2", file}, out, err) == 0);
  const std::string before = "rank(s) as ";
  const size_t at = out.str().find(before);
  REQUIRE(at != std::string::npos);
  std::istringstream words(out.str().substr(at + before.size()));
  const Json sample = Json::parse("{}", {}, "none");
  std::vector<std::string> flags = job.arguments(sample, file, "flags");
  flags.resize(flags.size() - 2);
  for (std::string word; words >> word;) flags.push_back(word);
  REQUIRE(run(flags) == 0);
  REQUIRE(run(job.arguments(sample, file, "file")) == 0);
  const auto hash = [&](const std::string& name) {
    std::ifstream in(job.path(name) + "/metrics.jsonl");
    std::string line, last;
    while (std::getline(in, line)) last = line;
    return Json::parse(last, {}, name).at("param_hash_final").as_string();
  };
  CHECK(hash("flags") == hash("file"));
}

TEST_CASE("the lint has one line a finding and exit code 2") {
  const auto lint = [](const std::vector<std::string>& arguments, int status) {
    std::ostringstream out, err;
    CHECK(run_lint_ds(arguments, out, err) == status);
    return out.str() + err.str();
  };
  const std::string valid = kFolder + "valid/", invalid = kFolder + "invalid/";
  std::vector<std::string> files;
  for (const auto& [name, sample] : cases("valid").members())
    files.push_back(valid + name + ".json");
  const std::string all = lint(files, 0);
  CHECK(has(all, "40-everything-idle.json:3: without effect: steps_per_print: "));
  CHECK(has(all, "09-comments.json:1: accepted: "));
  CHECK(has(lint({valid + "01-batch-sizes.json", invalid + "11-unknown-key.json"}, 2),
            "11-unknown-key.json:3: "));
  CHECK(has(lint({"--ranks", "4", valid + "01-batch-sizes.json"}, 2),
            "train_batch_size 8 is not 16"));
  CHECK(has(lint({"--auto"}, 0), "zero_optimization.reduce_bucket_size\n"));
  CHECK(has(lint({}, 2), "name the files"));
  CHECK(has(lint({kFolder + "none.json"}, 2), "none.json"));
  const std::string others =
      lint({kFolder, kFolder + "none.json", valid + "01-batch-sizes.json"}, 2);
  CHECK(has(others, "not a regular file"));
  CHECK(has(others, "none.json"));
  CHECK(has(others, "01-batch-sizes.json: the same on"));
  const TempDir dir;
  const std::string several =
      dir.write("several.json", "{\n\"train_batch_size\": \"4\",\n\"bf16\": true,\n\"tpyo\": 1\n}");
  const std::string said = lint({several}, 2);
  CHECK(std::count(said.begin(), said.end(), '\n') == 3);
  CHECK(has(said, ":3: bf16: true stands where a section { ... } is due"));
  CHECK(has(error_of([&] { Resolved(several, {}); }), "(and 2 more: tessera-lint-ds "));
}

TEST_CASE("comments and trailing commas become blanks, texts stay") {
  std::vector<int64_t> lines;
  CHECK(plain_json("{\"a//b\": 1, // c\n \"#\": \"\\\"/*\", /* x\n */ }", &lines) ==
        "{\"a//b\": 1,     \n \"#\": \"\\\"/*\"      \n    }");
  CHECK(lines == std::vector<int64_t>{1, 2, 2});
}

TEST_CASE("every key of DeepSpeed stands once in the table, behind its section") {
  std::set<std::string> seen;
  for (const DeepSpeedKey& key : deepspeed_keys()) {
    const std::string path = key.path;
    INFO(path);
    CHECK(seen.insert(path).second);
    const size_t dot = path.rfind('.');
    if (dot != path.npos) CHECK(seen.contains(path.substr(0, dot)));
    if (key.use == DeepSpeedKey::kRenamed) CHECK(find_deepspeed_key(key.text) != nullptr);
  }
}
