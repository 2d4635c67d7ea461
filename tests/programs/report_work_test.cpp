// SPDX-License-Identifier: MIT
// Comparability of runs, as tessera-report derives it from their settings.
#include <algorithm>
#include <set>

#include "lib/report/comparability.h"
#include "lib/report/read_runs.h"
#include "lib/report/report.h"
#include "lib/report/verdict.h"
#include "tests/programs/report_runs.h"
#include "tests/support/temp_dir.hpp"
#include "tests/support/test.hpp"

using namespace tessera;
using namespace tessera::report;
using namespace tessera::test;

namespace {

// A run whose configuration has every flag of the training programs at its default.
Run whole_run(const TrainOptions& options = {}) {
  Run run{.path = "a", .name = "a"};
  for (const settings::Setting& setting : settings::table()) {
    run.settings[setting.name] = setting.text(options);
  }
  run.facts = {{"model", "bloom-tiny"}, {"dataset_sha256", "ab"}, {"parameter_dtype", "fp32"}};
  return run;
}

std::vector<std::string> differences(const Run& run, const Run& baseline) {
  std::vector<std::string> texts;
  for (const Difference& one : work_differences(run, baseline)) texts.push_back(one.text());
  return texts;
}

}  // namespace

TEST_CASE(
    "report: every setting that changes numbers is other work, but for those that facts say") {
  const std::set<std::string> elsewhere{"model",
                                        "train_file",
                                        "train_ids",
                                        "dtype",
                                        "gradient_dtype",
                                        "reduce_dtype",
                                        "max_steps",
                                        "num_train_epochs",
                                        "seed",
                                        "dry_run",
                                        "recovery_test",
                                        "deepspeed_defaults",
                                        "resume_from_checkpoint"};
  const Run baseline = whole_run();
  CHECK(differences(whole_run(), baseline).empty());
  for (const settings::Setting& setting : settings::table()) {
    Run run = baseline;
    run.settings[setting.name] += "other";
    INFO(setting.name);
    if (setting.changes == settings::Changes::kNumbers && !elsewhere.contains(setting.name)) {
      CHECK(work_differences(run, baseline).size() == 1);
      CHECK(std::ranges::count(work_keys(), setting.name) == 1);
    }
  }
}

TEST_CASE("report: an optimizer, adapters, groups and their settings are other work") {
  const Run baseline = whole_run();
  TrainOptions sgd;
  sgd.training.optim = find_optimizer("sgd");
  sgd.training.optim_args = "momentum=0.9";
  CHECK(differences(whole_run(sgd), baseline) ==
        std::vector<std::string>{"optim sgd instead of adamw_torch",
                                 "optim_args momentum=0.9 instead of none"});
  TrainOptions lora;
  lora.lora.r = 8;
  CHECK(differences(whole_run(lora), baseline) ==
        std::vector<std::string>{"lora_r 8 instead of 0"});
  TrainOptions groups;
  groups.training.lr_groups = "lm_head=10";
  CHECK(differences(whole_run(groups), baseline) ==
        std::vector<std::string>{"lr_groups lm_head=10 instead of none"});
}

TEST_CASE("report: what an older version did not record is at its default") {
  Run older = whole_run();
  for (const char* name :
       {"optim", "optim_args", "lora_r", "lr_groups", "packing", "padding_free"}) {
    older.settings.erase(name);
  }
  Run newer = whole_run();
  newer.facts["padding_free"] = "false";  // as recorded
  CHECK(differences(older, newer).empty());
  CHECK(differences(newer, older).empty());
  newer.settings["optim"] = "sgd";
  CHECK(differences(newer, older) == std::vector<std::string>{"optim sgd instead of adamw_torch"});
  // Without a configuration, as for a benchmark, a setting is unknown.
  Run unknown = older;
  unknown.settings.clear();
  newer.facts.erase("padding_free");
  CHECK(differences(newer, unknown).empty());
  newer.facts["optim"] = "sgd";
  CHECK(differences(newer, unknown).empty());
}

TEST_CASE("report: the verdict leaves out a run of another optimizer, and one of adapters") {
  const TempDir folder;
  const auto write = [&](const char* name, double time_s, auto change) {
    MadeRun made;
    made.step_time_s = time_s;
    made.settings = {{"learning_rate", "0.001"}};
    change(made);
    made.write(folder.path(name));
  };
  write("adamw", 0.1, [](MadeRun&) {});
  write("faster", 0.05, [](MadeRun& r) { r.options.parallel.strategy = "zero2"; });
  write("sgd", 0.01, [](MadeRun& r) {
    r.options.training.optim = find_optimizer("sgd");
    r.settings.emplace_back("optim", "sgd");
  });
  write("lora", 0.02, [](MadeRun& r) {
    r.options.lora.r = 8;
    r.settings.emplace_back("lora_r", "8");
  });
  const Study study(read_runs({folder.path(".")}), "adamw");
  std::string fastest, left_out;
  for (const VerdictLine& one : verdict(study)) {
    if (one.title == "Fastest") fastest = one.text;
    if (one.title == "Left out here") left_out = one.text;
  }
  CHECK(fastest.starts_with("faster: "));
  CHECK(has(left_out, "sgd"));
  CHECK(has(left_out, "lora"));
}
