// SPDX-License-Identifier: MIT
#include "lib/report/report.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

#include "lib/report/read_runs.h"
#include "lib/report/tables.h"
#include "tessera/core/error.h"
#include "tests/programs/report_runs.h"
#include "tests/support/temp_dir.hpp"
#include "tests/support/test.hpp"

using namespace tessera;
using namespace tessera::report;
using namespace tessera::test;

namespace {

struct Said {
  int code = 0;
  std::string out, err;
};
Said report_of(const std::vector<std::string>& arguments) {
  std::ostringstream out, err;
  const int code = run_report(arguments, out, err);
  return {code, out.str(), err.str()};
}

// A row's cell by the run's name in the table and the column's key.
const Cell& cell(const Table& table, const std::string& run, const std::string& key) {
  for (const Row& row : table.rows) {
    if (row.cells.front().text != run) continue;
    for (size_t i = 0; i < row.cells.size(); ++i) {
      if (table.columns[i].key == key) return row.cells[i];
    }
  }
  FAIL("table " << table.id << " has no cell " << run << ", " << key);
  throw std::logic_error("");
}

Table only_table(const Study& study, const std::string& id) {
  const std::vector<Table> tables = make_tables(study, {id});
  REQUIRE(tables.size() == 1);
  return tables.front();
}

}  // namespace

TEST_CASE("report: a run is read with its steps, evaluations and end") {
  const TempDir folder;
  MadeRun made;
  made.eval_losses = {3, 2.5};
  made.settings = {{"learning_rate", "0.001"}};
  made.write(folder.path("a"));
  const Run run = read_run(folder.path("a"));
  CHECK(run.outcome == RunOutcome::kFinished);
  CHECK(run.steps.size() == 10);
  CHECK(run.steps.column("loss")[1] == 1);
  CHECK(run.evaluations.column("eval_loss") == std::vector<double>{3, 2.5});
  CHECK(run.number("eval_loss") == 2.5);
  CHECK(run.number("train_steps") == 10);
  CHECK(run.text("model") == "bloom-tiny");
  CHECK(run.text("learning_rate") == "0.001");
  CHECK_FALSE(run.steps.has("forward_s"));
}

TEST_CASE("report: a run that went on from a checkpoint is one run") {
  const TempDir folder;
  MadeRun made;
  made.ends = false;
  made.write(folder.path("a"));
  CHECK(read_run(folder.path("a")).outcome == RunOutcome::kUnfinished);
  made.first_step = 6;
  made.ends = true;
  made.loss = 60;
  made.write(folder.path("a"));
  const Run run = read_run(folder.path("a"));
  CHECK(run.outcome == RunOutcome::kFinished);
  std::vector<double> steps(15);
  for (size_t i = 0; i < steps.size(); ++i) steps[i] = static_cast<double>(i + 1);
  CHECK(run.steps.column("step") == steps);
  CHECK(run.steps.column("loss")[4] == 2.0 / 5);
  CHECK(run.steps.column("loss")[5] == 10);
  const std::vector<double> times = run.steps.column("elapsed_s");
  CHECK(std::ranges::is_sorted(times));
}

TEST_CASE("report: slices of the data are told apart, and that their times are the last one's") {
  const TempDir folder;
  MadeRun made;
  made.eval_losses = {3};
  made.write(folder.path("a"));
  made.first_step = 11;
  made.restored_from = "checkpoint-10";
  made.write(folder.path("a"));
  const Study study(read_runs({folder.path("a")}), "");
  const Table table = only_table(study, "1");
  CHECK(*cell(table, "a", "eval_loss_1").number == 3);
  CHECK(*cell(table, "a", "eval_loss_2").number == 3);
  const std::string text = to_markdown(table);
  CHECK(has(text, "| eval loss, step 10 | eval loss, step 20 |"));
  CHECK(has(text, "- a: went on from a checkpoint"));
}

TEST_CASE("report: a torn last line is left out, any other is named") {
  const TempDir folder;
  MadeRun().write(folder.path("a"));
  const std::string path = folder.path("a/metrics.jsonl");
  std::ofstream(path, std::ios::app) << "{\"event\":\"st";
  CHECK(read_run(folder.path("a")).steps.size() == 10);
  std::ofstream(path, std::ios::app) << "\n";
  const Said said = report_of({folder.path("a")});
  CHECK(said.code == 4);
  CHECK(has(said.err, "metrics.jsonl:14"));
}

TEST_CASE("report: savings and changes are those of the formulas") {
  const TempDir folder;
  MadeRun a, b;
  a.gpu_bytes = 1000 << 20;
  a.write(folder.path("ddp"));
  b.options.parallel.strategy = "zero2";
  b.options.parallel.offload.what = Offload::kOptimizer;
  b.gpu_bytes = 250 << 20;
  b.step_time_s = 0.15;
  b.write(folder.path("zero2-off"));
  const Study study(read_runs({folder.path(".")}), "");
  CHECK(study.baseline->name == "ddp");
  const Table table = only_table(study, "4");
  CHECK(*cell(table, "zero2-off", "memory_savings_ratio").number == Approx(0.75));
  CHECK(*cell(table, "zero2-off", "step_time_change_ratio").number == Approx(0.5));
  CHECK_FALSE(cell(table, "ddp", "memory_savings_ratio").number);
  CHECK(cell_text(cell(table, "zero2-off", "gpu_mem_allocated_peak_bytes"),
                  {.key = "", .title = "", .scale = 1.0 / (1 << 20)}) == "250.0");
  const Study other(read_runs({folder.path(".")}), "zero2-off");
  CHECK(*cell(only_table(other, "4"), "ddp", "memory_savings_ratio").number == Approx(-3));
}

TEST_CASE("report: a run that did other work is marked in every table") {
  const TempDir folder;
  MadeRun run;
  run.options.parallel.offload.what = Offload::kOptimizer;
  run.write(folder.path("base"));
  const auto other = [&](const std::string& name, auto change) {
    MadeRun made = run;
    made.options.parallel.strategy = "zero2";
    change(made);
    made.write(folder.path(name));
  };
  other("same", [](MadeRun&) {});
  other("dtype", [](MadeRun& r) { r.start.parameter_dtype = "bf16"; });
  other("data", [](MadeRun& r) { r.start.dataset_sha256 = std::string(64, 'b'); });
  other("model", [](MadeRun& r) { r.start.model = "gpt2"; });
  other("batch", [](MadeRun& r) { r.start.global_batch_size = 16; });
  other("rate", [](MadeRun& r) { r.settings = {{"learning_rate", "1"}}; });
  const Study study(read_runs({folder.path(".")}), "base");
  for (const char* id : {"1", "2", "3", "4", "6"}) {
    const Table table = only_table(study, id);
    INFO(id);
    for (const Row& row : table.rows) {
      const std::string& name = row.cells.front().text;
      INFO(name);
      CHECK(row.mark.empty() == (name == "base" || name == "same"));
      CHECK(row.is_baseline == (name == "base"));
    }
    CHECK(has(to_markdown(table), "dtype of parameters bf16 instead of fp32"));
  }
  const std::string csv = to_csv(only_table(study, "1"));
  CHECK(has(csv, "model gpt2 instead of bloom-tiny"));
  CHECK(has(csv, "global batch 16 instead of 8"));
  MadeRun evaluated = run;
  evaluated.settings = {{"learning_rate", "0.1"}, {"validation_file", "dev.json"}};
  run.settings = {{"learning_rate", "0.1"}, {"validation_file", ""}};
  run.write(folder.path("pair/plain"));
  evaluated.write(folder.path("pair/evaluated"));
  const Study pair(read_runs({folder.path("pair")}), "plain");
  CHECK(has(to_csv(only_table(pair, "1")), "evaluated on dev.json instead of none"));
}

TEST_CASE("report: repeats are one row with median and deviation") {
  const TempDir folder;
  for (int i = 0; i < 3; ++i) {
    MadeRun made;
    made.start.seed = static_cast<uint64_t>(i);
    made.step_time_s = 0.1 * (i + 1);
    made.write(folder.path(concat("ddp-2/repeat-", i + 1)));
    made.options.parallel.strategy = "zero1";
    made.write(folder.path(concat("zero1-2/repeat-", i + 1)));
  }
  const Study study(read_runs({folder.path(".")}), "");
  REQUIRE(study.groups.size() == 2);
  CHECK(study.groups.front().name == "ddp-2");
  const Table table = only_table(study, "6");
  CHECK(*cell(table, "zero1-2", "repeats").number == 3);
  CHECK(*cell(table, "zero1-2", "step_time_median_s").number == Approx(0.2));
  CHECK(*cell(table, "zero1-2", "step_time_std_s").number == Approx(0.1));
}

TEST_CASE("report: scaling compares tokens per second and rank") {
  const TempDir folder;
  write_runs(folder.path("weak"),
             [](MadeRun& weak, int64_t ranks) { weak.step_time_s = ranks == 4 ? 0.2 : 0.1; });
  for (const int64_t ranks : {1, 2, 4}) {
    MadeRun strong;
    strong.options.parallel.strategy = "zero1";
    strong.options.training.gradient_accumulation_steps = 4 / ranks;
    strong.ranks(ranks);
    strong.step_time_s = 0.4 / static_cast<double>(ranks);
    strong.write(folder.path(concat("strong-", ranks)));
  }
  const Study study(read_runs({folder.path(".")}), "");
  const Table weak = only_table(study, "5a"), strong = only_table(study, "5b");
  CHECK(weak.rows.size() == 3);
  CHECK(strong.rows.size() == 3);
  CHECK(*cell(weak, "weak-2", "efficiency_ratio").number == Approx(1));
  CHECK(*cell(weak, "weak-4", "efficiency_ratio").number == Approx(0.5));
  CHECK(*cell(strong, "strong-4", "efficiency_ratio").number == Approx(1));
}

TEST_CASE("report: pairs differ in one setting alone") {
  const TempDir folder;
  for (const int64_t batch : {2, 4}) {
    for (const char* strategy : {"zero2", "zero3"}) {
      MadeRun made;
      made.options.parallel.strategy = strategy;
      made.options.training.per_device_train_batch_size = batch;
      made.options.training.gradient_accumulation_steps = 4 / batch;
      made.step_time_s = strategy == std::string("zero3") ? 0.2 : 0.1;
      made.gpu_bytes = batch << 20;
      made.write(folder.path(concat(strategy, "-mb", batch)));
    }
  }
  MadeRun lonely;
  lonely.options.parallel.strategy = "zero3";
  lonely.settings = {{"gradient_checkpointing", "true"}};
  lonely.write(folder.path("lonely"));
  const Study study(read_runs({folder.path(".")}), "");
  const Table table = only_table(study, "7a");
  REQUIRE(table.rows.size() == 2);
  CHECK(cell(table, "zero2-mb2", "other_run").text == "zero3-mb2");
  CHECK(*cell(table, "zero2-mb4", "tokens_per_second_ratio").number == Approx(0.5));
  std::set<std::string> titles;
  for (const Column& column : table.columns) titles.insert(column.title);
  CHECK(titles.size() == table.columns.size());  // no duplicate column titles
  const Said empty = report_of({folder.path("."), "--tables", "7c"});
  CHECK(has(empty.out, "No row: this table needs gpipe and 1f1b"));
}

TEST_CASE("report: the largest batch is the largest that did not run out of memory") {
  const TempDir folder;
  for (const int64_t batch : {1, 2, 4, 8}) {
    MadeRun made;
    made.options.training.per_device_train_batch_size = batch;
    made.options.training.gradient_accumulation_steps = 8 / batch;
    made.start.global_batch_size = 16;
    if (batch > 2) made.exit_code = 3;
    made.write(folder.path(concat("mb", batch)));
  }
  const Study study(read_runs({folder.path(".")}), "");
  const Table table = only_table(study, "7e");
  REQUIRE(table.rows.size() == 1);
  CHECK(*cell(table, "mb2", "per_device_train_batch_size").number == 2);
  CHECK(*cell(table, "mb2", "out_of_memory_batch_size").number == 4);
}

TEST_CASE("report: rows of a comparison that left no run are rows") {
  const TempDir folder;
  MadeRun().write(folder.path("single-1"));
  MadeRun zero;
  zero.options.parallel.strategy = "zero2";
  zero.write(folder.path("zero2-2"));
  folder.write("comparison.csv",
               "row,strategy,world_size,loss_difference_ratio,worst_parameter,exit_code,verdict,"
               "message\n"
               "single-1,single,1,,,0,reference,\n"
               "zero2-2,zero2,2,1e-7,h.0.weight,0,PASS,\n"
               "zero3-2,zero3,2,,,3,out of memory,\"too large, by 3 \"\"GiB\"\"\"\n");
  const std::vector<Run> runs = read_runs({folder.path(".")});
  REQUIRE(runs.size() == 3);
  CHECK(runs[1].parity->loss == 1e-7);
  CHECK(runs[1].parity->reference == "single-1");
  CHECK(runs[2].name == "zero3-2");
  CHECK(runs[2].outcome == RunOutcome::kOutOfMemory);
  CHECK(runs[2].problem == "too large, by 3 \"GiB\"");
  const Said said = report_of({folder.path(".")});
  CHECK(said.code == 0);
  CHECK(has(said.out, "| zero3-2 | out of memory |"));
  CHECK(has(said.out, "zero3-2: out of memory; too large"));
}

TEST_CASE("report: tessera-compare's JSON says which runs are a row's, and what left none") {
  const TempDir folder;
  for (const char* name : {"zero2-2", "zero2-2.2"}) {
    MadeRun made;
    made.settings = {{"per_device_train_batch_size", "4"}, {"eval_steps", "0"}};
    made.options.parallel.strategy = "zero2";
    made.write(folder.path(name));
  }
  folder.write("compare.json", R"({"schema":"tessera.compare/1","baseline":"hf","rows":[
    {"row":"zero2-2","runs":["zero2-2","zero2-2.2"],"strategy":"zero2","verdict":"reference",
     "exit_code":0,"largest_batch_size":4,"out_of_memory_batch_size":5,"flags":"--strategy zero2"},
    {"row":"zero2-2-mb64","runs":[],"strategy":"zero2","per_device_train_batch_size":64,
     "world_size":2,"global_batch_size":8,"verdict":"out of memory","exit_code":3,
     "flags":"--strategy zero2 --per_device_train_batch_size 64","message":"8 GiB too few"},
    {"row":"hf","runs":[],"peer":"hf","verdict":"peer","exit_code":0,"step_time_median_s":0.5,
     "tokens_per_second_median":123,"repeats":3,"tokens_per_second_repeat_std":4,"message":null}]})");
  const Study study(read_runs({folder.path(".")}), "");
  REQUIRE(study.groups.size() == 3);
  CHECK(study.groups[0].runs.size() == 2);
  CHECK(study.groups[0].name == "zero2-2");
  CHECK(study.runs[2].text("eval_steps") == "0");
  CHECK(study.groups[2].median("tokens_per_second_median") == 123);
  CHECK(study.baseline == &study.groups[2]);
  CHECK(study.groups[2].repeats() == 3);
  CHECK(study.groups[2].deviation("tokens_per_second_median") == 4);
  const Table table = only_table(study, "7e");
  REQUIRE(table.rows.size() == 1);
  CHECK(*cell(table, "zero2-2", "out_of_memory_batch_size").number == 5);
}

TEST_CASE("report: a peer's repeats are one row, whose settings are those of its flags") {
  const TempDir folder;
  MadeRun made;
  made.settings = {{"eval_steps", "0"}, {"weight_decay", "0.1"}};
  made.start.flags =
      "--config all.json --weight_decay 0.1";  // the file's settings, which hold for all rows
  made.write(folder.path("single-1"));
  for (const char* name : {"hf-single-1", "hf-single-1.2"}) {
    std::filesystem::create_directory(folder.path(name));
    folder.write(std::string(name) + "/metrics.jsonl",
                 R"({"event":"run_start","run_id":"a","elapsed_s":0,"peer":"hf","strategy":"single"}
{"event":"step","elapsed_s":1,"step":1,"loss":2.5}
{"event":"run_end","elapsed_s":1,"exit_code":0,"tokens_per_second_median":50}
)");
  }
  folder.write("compare.json", R"({"schema":"tessera.compare/1","baseline":"single-1","rows":[
    {"row":"single-1","runs":["single-1"],"verdict":"reference","exit_code":0,
     "flags":"--config all.json"},
    {"row":"hf-single-1","runs":["hf-single-1","hf-single-1.2"],"peer":"hf","verdict":"peer",
     "exit_code":0,"flags":"--config all.json --learning_rate 0.5"}]})");
  const Study study(read_runs({folder.path(".")}), "");
  REQUIRE(study.groups.size() == 2);
  CHECK(study.groups[1].name == "hf-single-1");
  CHECK(study.groups[1].repeats() == 2);
  CHECK(study.groups[1].median("tokens_per_second_median") == 50);
  CHECK(study.groups[1].text("learning_rate") == "0.5");
  CHECK(study.groups[1].text("weight_decay") == "0.1");
}

TEST_CASE("report: benchmarks are runs, from their lines and from Google Benchmark's JSON") {
  const TempDir folder;
  folder.write(
      "bench.log",
      "noise\nTESSERA {\"model\":\"bloom-560m\",\"mode\":\"zero2\",\"mesh\":\"1x2x1\","
      "\"variant\":\"\",\"mb\":4,\"seq\":512,\"accum\":1,\"dtype\":\"bf16\",\"world\":2,"
      "\"params\":559214592,\"step_ms\":40.5,\"tok_s_gpu\":1000.5,\"peak_alloc_mib\":512}\n"
      "TESSERA {\"profile\":\"bloom-560m/zero2/mb4\",\"world\":2,\"step_s\":0.04}\n");
  folder.write("bench.json",
               "{\"context\":{},\"benchmarks\":[{\"name\":\"bloom-560m/zero3/mb4/ranks2/"
               "iterations:5/manual_time\",\"run_type\":\"iteration\",\"real_time\":50.0,"
               "\"time_unit\":\"ms\",\"tokens/s/rank\":900.0,\"peak_MiB\":256.0}]}");
  const std::vector<Run> runs = read_runs({folder.path("bench.log"), folder.path("bench.json")});
  REQUIRE(runs.size() == 2);
  CHECK(runs[0].number("tokens_per_second_median") == 2001);
  CHECK(runs[0].number("global_batch_size") == 8);
  CHECK(runs[0].number("gpu_mem_allocated_peak_bytes") == 512 << 20);
  CHECK(runs[1].number("tokens_per_second_median") == 1800);
  CHECK(runs[1].text("strategy") == "zero3");
}

TEST_CASE("report: bad input is one line with the exit code") {
  const TempDir folder;
  MadeRun().write(folder.path("a"));
  std::filesystem::create_directories(folder.path("empty"));
  const auto fails = [&](std::vector<std::string> arguments, int code, const std::string& part) {
    const Said said = report_of(arguments);
    INFO(said.err);
    CHECK(said.code == code);
    CHECK(has(said.err, part));
    CHECK(std::ranges::count(said.err, '\n') == 1);
  };
  fails({}, 2, "name runs");
  fails({folder.path("none")}, 4, "does not exist");
  fails({folder.path("empty")}, 4, "holds no run");
  fails({folder.path("a"), "--tables", "8"}, 2, "no table '8'");
  fails({folder.path("a"), "--tables", "11"}, 2, "no table '11'");
  fails({folder.path("a"), "--baseline", "b"}, 2, "there are a");
  fails({folder.path("a"), "--output", "x.csv"}, 2, "one table");
  fails({folder.path("a"), "--output", "x.pdf"}, 2, "end it in");
  fails({folder.path("a"), "--output", folder.path("none/x.md")}, 4, "cannot be written");
  fails({folder.path("a"), "--bseline", "b"}, 2, "--baseline");
}
