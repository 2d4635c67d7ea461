// SPDX-License-Identifier: MIT
#include <malloc.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>
#include <sstream>

#include "tessera/core/error.h"
#include "tessera/core/json.h"
#include "tessera/metrics/recorder.h"
#include "tests/support/messages.hpp"
#include "tests/support/test.hpp"

using namespace tessera;
using namespace tessera::metrics;

namespace {

struct Folder {
  std::string path = (std::filesystem::temp_directory_path() / "tessera_sinks_XXXXXX").string();
  Folder() { REQUIRE(mkdtemp(path.data()) != nullptr); }
  ~Folder() { std::filesystem::remove_all(path); }
  std::string file(const std::string& name) const { return path + "/" + name; }
};

std::vector<std::string> lines_of(const std::string& path) {
  std::ifstream in(path);
  std::vector<std::string> lines;
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

std::vector<std::string> cells_of(const std::string& line) {
  std::vector<std::string> cells;
  std::istringstream in(line + ",");
  for (std::string cell; std::getline(in, cell, ',');) cells.push_back(cell);
  return cells;
}

RunStartRecord small_run() {
  RunStartRecord run;
  run.exp = "single_fp32_cpus1_bs2_sl8";
  run.argv = {"prog", "--max_steps", "4"};
  run.settings = {{"strategy", std::string("single")}};
  run.num_train_steps = 4;
  return run;
}

StepRecord step_record(int64_t step, double loss) {
  StepRecord record;
  record.step = step;
  record.loss = loss;
  record.step_time_s = step == 1 ? 5.0 : 0.5;  // the first step warms up
  record.samples = 2;
  record.tokens = 16;
  record.mfu_ratio = step == 1 ? 0.01 : step == 4 ? 54.0 : 0.4;  // the outlier of a faulty clock
  return record;
}

void run_once(std::vector<std::unique_ptr<Sink>> sinks, int64_t logging_steps = 1) {
  Recorder recorder(std::move(sinks), logging_steps);
  recorder.start(small_run());
  for (int64_t step = 1; step <= 4; ++step) recorder.step(step_record(step, 5.0 - step));
  EvalRecord eval;
  eval.step = 4;
  eval.eval_loss = 1.5;
  eval.eval_runtime_s = 2;
  eval.samples = 10;
  recorder.eval(eval);
  ResourceRecord resource;
  for (int64_t bytes : {100, 300}) {
    resource.cpu_rss_tree_bytes = bytes;
    recorder.resource(resource);
  }
  recorder.finish({.param_hash_final = "abc"});
  recorder.step(step_record(5, 0));  // after the end: nothing may follow
}

template <typename... Sinks>
std::vector<std::unique_ptr<Sink>> list(Sinks... sinks) {
  std::vector<std::unique_ptr<Sink>> all;
  (all.push_back(std::move(sinks)), ...);
  return all;
}

}  // namespace

TEST_CASE("a recorder's size does not grow over 1,000 steps") {
  Recorder recorder({}, 10);
  recorder.start(small_run());
  auto run = [&, step = int64_t{0}](int64_t steps) mutable {
    for (int64_t end = step + steps; step < end;) recorder.step(step_record(++step, 5.0));
  };
  run(200);                                    // until the loss watch's window is full
  const size_t before = mallinfo2().uordblks;  // bytes in use
  run(1000);
  CHECK(mallinfo2().uordblks <= before + 1024);
}

TEST_CASE(
    "metrics.jsonl holds every event with the common keys, and the summary leaves the warm-up "
    "out") {
  Folder folder;
  run_once(list(make_jsonl_sink(folder.file("metrics.jsonl"))));
  const auto lines = lines_of(folder.file("metrics.jsonl"));
  REQUIRE(lines.size() == 1 + 4 + 1 + 2 + 1);
  std::vector<Json> events;
  for (const auto& line : lines) events.push_back(Json::parse(line, {}, "line"));
  for (const Json& event : events) {
    CHECK(event.at("schema").as_string() == "tessera.metrics/1");
    CHECK(event.at("run_id").as_string() == events[0].at("run_id").as_string());
    CHECK(event.at("rank").as_int64() == 0);
    CHECK(event.at("time_unix_s").as_double() > 1.6e9);
  }
  CHECK(events[0].at("event").as_string() == "run_start");
  CHECK(events[2].at("loss").as_double() == 3.0);
  const Json end = events.back();
  CHECK(end.at("event").as_string() == "run_end");
  CHECK(end.at("train_loss").as_double() == Approx(2.5));
  CHECK(end.at("train_loss_final").as_double() == 1.0);
  CHECK(end.at("warmup_steps_excluded").as_int64() == 1);
  CHECK(end.at("mfu_ratio").as_double() == 0.4);
  CHECK(end.at("step_time_mean_s").as_double() == Approx(0.5));
  CHECK(end.at("tokens_per_second_median").as_double() == Approx(32));
  CHECK(end.at("cpu_rss_tree_peak_bytes").as_int64() == 300);
  CHECK(end.at("cpu_rss_tree_mean_bytes").as_int64() == 200);
  CHECK(end.at("gpu_mem_used_peak_bytes").is_null());
  CHECK(end.at("param_hash_final").as_string() == "abc");
}

TEST_CASE("a log that cannot be written ends nothing once the run has begun") {
  struct Full : Sink {
    explicit Full(int fails_from) : left(fails_from) {}
    void write(const Event&) override {
      check(left-- > 0, ErrorCode::kDataLoss, "log: write failed (No space left on device)");
    }
    int left;
  };
  Folder folder;
  run_once(list(std::make_unique<Full>(3), make_jsonl_sink(folder.file("m"))));
  CHECK(lines_of(folder.file("m")).size() == 1 + 4 + 1 + 2 + 1);  // the other sinks lose nothing
  CHECK_THAT(error_of(ErrorCode::kDataLoss, [&] { run_once(list(std::make_unique<Full>(0))); }),
             test::contains("No space left"));  // no training without a log
}

TEST_CASE("logging_steps thins the steps that are written, not the summary") {
  Folder folder;
  run_once(list(make_jsonl_sink(folder.file("m"))), /*logging_steps=*/2);
  const auto lines = lines_of(folder.file("m"));
  CHECK(lines.size() == 1 + 3 + 1 + 2 + 1);  // steps 1, 2, 4
  CHECK(Json::parse(lines.back(), {}, "line").at("train_steps").as_int64() == 4);
}

TEST_CASE("results.csv has one row a run, whose columns hold every scalar of the run") {
  Folder folder;
  const std::string path = folder.file("results.csv");
  run_once(list(make_results_sink(path, {"strategy"}), make_jsonl_sink(folder.file("m"))));
  run_once(list(make_results_sink(path, {"strategy"})));
  const auto lines = lines_of(path);
  REQUIRE(lines.size() == 3);
  const auto columns = cells_of(lines[0]), row = cells_of(lines[1]);
  REQUIRE(columns.size() == row.size());
  auto cell = [&](const std::string& column) {
    auto found = std::find(columns.begin(), columns.end(), column);
    INFO("column " << column);
    REQUIRE(found != columns.end());
    return row[static_cast<size_t>(found - columns.begin())];
  };
  CHECK(cell("exp") == "single_fp32_cpus1_bs2_sl8");
  CHECK(cell("eval_loss") == "1.5");
  CHECK(cell("train_loss_final") == "1.0");
  const std::vector<std::string> not_tabulated{"schema", "event", "elapsed_s",
                                               "rank",   "argv",  "config"};
  for (const auto& line : lines_of(folder.file("m"))) {
    const Json event = Json::parse(line, {}, "line");
    const std::string name = event.at("event").as_string();
    if (name == "step" || name == "resource") continue;
    for (const auto& [key, value] : event.members()) {
      if (std::count(not_tabulated.begin(), not_tabulated.end(), key) == 0) cell(key);
    }
  }
}

TEST_CASE("events are appended behind the last whole line of a run that was killed") {
  Folder folder;
  const std::string path = folder.file("metrics.jsonl");
  std::ofstream(path) << "{\"first\":1}\n{\"second\":2}\n{\"thi";
  make_jsonl_sink(path)->write({"step", {}});
  const std::vector<std::string> lines = lines_of(path);
  REQUIRE(lines.size() == 3);
  CHECK(lines[1] == "{\"second\":2}");
  CHECK(lines[2].ends_with("}"));
}

TEST_CASE("a CSV file with other columns is refused before anything is appended") {
  Folder folder;
  const std::string path = folder.file("results.csv");
  std::ofstream(path) << "a,b\n1,2\n";
  CHECK(error_of(ErrorCode::kDataLoss, [&] { make_results_sink(path); }).find(path) == 0);
  CHECK(lines_of(path).size() == 2);
  CHECK_THROWS_AS(make_jsonl_sink(folder.file("no/such/folder")), Error);
}

TEST_CASE("the console prints one line a step, and a progress bar only on a terminal") {
  Folder folder;
  for (bool terminal : {false, true}) {
    std::FILE* file = std::fopen(folder.file("out").c_str(), "w");
    run_once(list(make_console_sink(file, terminal)));
    std::fclose(file);
    std::ifstream in(folder.file("out"));
    const std::string text((std::istreambuf_iterator<char>(in)), {});
    INFO(text);
    CHECK(text.find("step 2/4  loss 3.00000") != std::string::npos);
    CHECK(text.find("eval at step 4  loss 1.50000") != std::string::npos);
    CHECK((text.find('\r') != std::string::npos) == terminal);
    CHECK((text.find("left") != std::string::npos) == terminal);
    CHECK(text.back() == '\n');
    CHECK(text.find("done: 4 steps in ") != std::string::npos);
    CHECK(text.find("  loss      train 2.50000 (last 1.00000), eval 1.50000\n") !=
          std::string::npos);
    CHECK(text.find('\033') == (terminal ? text.find("\033[K") : std::string::npos));  // no colours
  }
}

namespace {

std::string console_text(const ConsoleOptions& options, int64_t steps, int64_t logging_steps) {
  std::FILE* file = std::tmpfile();
  REQUIRE(file != nullptr);
  RunStartRecord run = small_run();
  run.num_train_steps = steps;
  Recorder recorder(list(make_console_sink(file, options)), logging_steps);
  recorder.start(run);
  for (int64_t step = 1; step <= steps; ++step) recorder.step(step_record(step, 5.0));
  recorder.finish({});
  std::string text(static_cast<size_t>(std::ftell(file)), ' ');
  std::rewind(file);
  CHECK(std::fread(text.data(), 1, text.size(), file) == text.size());
  std::fclose(file);
  return text;
}

int64_t count_of(const std::string& text, const std::string& part) {
  int64_t count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

}  // namespace

TEST_CASE(
    "a run has about twenty lines unless told otherwise, its first and last step among them") {
  CHECK(steps_a_line(1) == 1);
  CHECK(steps_a_line(25) == 1);
  CHECK(steps_a_line(26) == 2);
  CHECK(steps_a_line(1000) == 50);
  CHECK(steps_a_line(100000) == 5000);
  for (const int64_t steps : {1, 6, 25, 60, 999, 1000, 20011}) {
    const std::string text = console_text({.every = 0}, steps, 0);
    INFO(text);
    const int64_t lines = count_of(text, "\nstep ");
    CHECK(lines <= 27);
    CHECK(lines >= std::min<int64_t>(steps, 10));
    CHECK(text.find("\nstep 1/") != std::string::npos);
    CHECK(text.find(concat("\nstep ", steps, "/")) != std::string::npos);
  }
  CHECK(count_of(console_text({.every = 1}, 60, 1), "\nstep ") == 60);
  CHECK(count_of(console_text({.every = 7}, 60, 7), "\nstep ") == 1 + 8);
}

TEST_CASE("lines of a terminal fit its window, and its colours can be left out") {
  setenv("COLUMNS", "50", 1);
  const std::string narrow = console_text({.terminal = true, .every = 0}, 4, 0);
  setenv("COLUMNS", "140", 1);
  const std::string wide = console_text({.terminal = true, .every = 0}, 4, 0);
  unsetenv("COLUMNS");
  const auto widest = [](const std::string& text) {
    size_t most = 0;
    std::string line;
    for (const char c : text + "\n") {
      if (c != '\n' && c != '\r') {
        line += c;
        continue;
      }
      if (line.starts_with("\033[K")) line.erase(0, 3);
      most = std::max(most, line.size());
      line.clear();
    }
    return most;
  };
  INFO(narrow << wide);
  CHECK(widest(narrow) <= 49);
  CHECK(widest(wide) > 80);
  CHECK(widest(wide) <= 139);
  CHECK(narrow.find("loss 5.00000") != std::string::npos);
  CHECK(wide.find("tokens/s") != std::string::npos);
  CHECK(console_text({.terminal = true, .colours = true}, 1, 1).find("\033[32mdone") !=
        std::string::npos);
}

TEST_CASE("what was found is said in rows below the run's name") {
  const std::string text = console_text({.found = {{"files", "out"}}}, 1, 1);
  CHECK(text.starts_with("single_fp32_cpus1_bs2_sl8\n  model     "));
  CHECK(text.find("\n  steps     global batch 1, 1 steps\n") != std::string::npos);
  CHECK(text.find("\n  files     out\n") != std::string::npos);
}

TEST_CASE("a NaN has no sign on the console") {
  const Folder folder;
  std::FILE* file = std::fopen(folder.file("out").c_str(), "w");
  {
    Recorder recorder(list(make_console_sink(file, false)), 1);
    recorder.start(small_run());
    recorder.step(step_record(1, -std::numeric_limits<double>::quiet_NaN()));
  }
  std::fclose(file);
  CHECK(lines_of(folder.file("out")).back().starts_with("step 1/4  loss nan"));
}

TEST_CASE("TensorBoard files are framed records with the scalars of steps and evaluations") {
  Folder folder;
  run_once(list(make_tensorboard_sink(folder.file("tensorboard"))));
  const auto entry = *std::filesystem::directory_iterator(folder.file("tensorboard"));
  CHECK(entry.path().filename().string().starts_with("events.out.tfevents."));
  std::ifstream in(entry.path(), std::ios::binary);
  const std::string bytes((std::istreambuf_iterator<char>(in)), {});
  std::vector<std::string> records;
  for (size_t at = 0; at < bytes.size();) {
    uint64_t length = 0;
    REQUIRE(at + 16 <= bytes.size());
    std::copy_n(bytes.data() + at, 8, reinterpret_cast<char*>(&length));
    REQUIRE(at + 16 + length <= bytes.size());
    records.push_back(bytes.substr(at + 12, length));
    at += 16 + length;
  }
  REQUIRE(records.size() == 1 + 4 + 1);
  CHECK(records[0].ends_with("brain.Event:2"));
  // Checksums of the first frame: CRC-32C of the length (24), and TFRecord's masking.
  REQUIRE(records[0].size() == 24);
  uint32_t stored = 0;
  std::copy_n(bytes.data() + 8, 4, reinterpret_cast<char*>(&stored));
  CHECK(stored == 0x224B7FA3);
  const std::string loss("\x0a\x0atrain/loss\x15\x00\x00\x40\x40", 17);  // tag, then 3.0f
  CHECK(records[2].find(loss) != std::string::npos);
  CHECK(records[5].find("eval/loss") != std::string::npos);
}

TEST_CASE("the runtime ends with training, and a jump of the loss is noted before its step") {
  const Folder folder;
  const std::string path = folder.file("metrics.jsonl");
  std::vector<std::unique_ptr<Sink>> sinks;
  sinks.push_back(make_jsonl_sink(path));
  Recorder recorder(std::move(sinks));
  recorder.start(small_run());
  for (int64_t step = 1; step <= 30; ++step) {
    recorder.step(step_record(step, step == 25 ? 40 : step == 27 ? NAN : 2 + 0.01 * (step % 5)));
  }
  recorder.end_of_training();
  const double trained = Json::parse(lines_of(path).back(), {}, "").at("elapsed_s").as_double();
  usleep(50'000);
  recorder.finish({});
  const std::vector<std::string> lines = lines_of(path);
  const Json end = Json::parse(lines.back(), {}, "");
  const double started = Json::parse(lines.front(), {}, "").at("elapsed_s").as_double();
  const double runtime = end.at("train_runtime").as_double();
  CHECK(runtime >= trained - started);
  CHECK(end.at("elapsed_s").as_double() - runtime >= 0.05);
  std::vector<std::string> noted;
  for (size_t i = 0; i + 1 < lines.size(); ++i) {
    const Json event = Json::parse(lines[i], {}, "");
    if (event.at("event").as_string() != "anomaly") continue;
    const Json next = Json::parse(lines[i + 1], {}, "");
    noted.push_back(event.at("kind").as_string() + " " + next.at("step").dump());
  }
  CHECK(noted == std::vector<std::string>{"spike 25", "nan 27"});
}
