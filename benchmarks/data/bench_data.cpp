// SPDX-License-Identifier: MIT
// Tokeniser, row cache and data loader on synthetic text:
//   bench_data [--tokenizer DIR] [--questions N] [--benchmark_...]
//   bench_data --write squad FILE QUESTIONS | lines FILE BYTES       the text alone, for trials
#include <benchmark/benchmark.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <optional>
#include <thread>

#include "benchmarks/data/synthetic_text.h"
#include "benchmarks/start.h"
#include "lib/core/hash.h"
#include "lib/core/host_threads.h"
#include "lib/data/token_cache.h"
#include "tessera/core/error.h"
#include "tessera/data/batch_stream.h"
#include "tessera/data/squad.h"

namespace tessera::benchmarks {
namespace {

struct Options {
  std::string tokenizer = "examples/data/tokenizer";
  int64_t questions = 87'000;
};

struct Work {
  explicit Work(const Options& options)
      : folder(std::filesystem::temp_directory_path() /
               ("tessera-bench-" + std::to_string(getpid()))),
        tokenizer(Tokenizer::load(options.tokenizer)) {
    std::filesystem::create_directory(folder);
    std::ofstream out(squad_file());
    write_squad(out, options.questions);
    check(out.good(), ErrorCode::kDataLoss, squad_file(), ": cannot be written");
  }
  ~Work() { std::filesystem::remove_all(folder); }

  std::string squad_file() const { return (folder / "squad.json").string(); }
  RowFacts make_rows(const RowTaker& take) const {
    const SquadExamples made = squad_examples(read_squad(squad_file()), tokenizer, {});
    for (const Example& row : made.dataset.examples) take(row);
    return {};
  }
  TokenCacheEntry entry() const {
    return {.directory = folder.string(), .name = "squad", .key = xxh3_128("squad", 5)};
  }

  std::filesystem::path folder;
  Tokenizer tokenizer;
};

void encode(benchmark::State& state, const Work& work) {
  const std::string text = SyntheticText().words(1000);
  int64_t tokens = 0;
  for (auto _ : state) tokens += static_cast<int64_t>(work.tokenizer.encode(text).size());
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations() * text.size()));
  state.counters["tokens_per_second"] =
      benchmark::Counter(static_cast<double>(tokens), benchmark::Counter::kIsRate);
}

void count_rows(benchmark::State& state, const TokenTable& rows) {
  state.counters["rows"] = static_cast<double>(rows.size());
  state.counters["rows_per_second"] = benchmark::Counter(
      static_cast<double>(rows.size()), benchmark::Counter::kIsIterationInvariantRate);
}

void first_time(benchmark::State& state, const Work& work) {
  const TokenCacheEntry entry = work.entry();
  for (auto _ : state) {
    for (const auto& file : std::filesystem::directory_iterator(work.folder)) {
      if (file.path() != work.squad_file()) std::filesystem::remove(file.path());
    }
    count_rows(state, tokenised_rows(entry, [&](auto& take) { return work.make_rows(take); }).rows);
  }
}

void again(benchmark::State& state, const Work& work) {
  const auto make = [&](const RowTaker& take) { return work.make_rows(take); };
  tokenised_rows(work.entry(), make);
  for (auto _ : state) {
    benchmark::DoNotOptimize(hash_file(work.squad_file()));  // as a program computes its key
    count_rows(state, tokenised_rows(work.entry(), make).rows);
  }
}

// Time that a step waits for its batch, if the step itself takes `step_us`.
void batches(benchmark::State& state, const Work& work, int64_t micro_batch, int64_t step_us) {
  const auto make = [&](const RowTaker& take) { return work.make_rows(take); };
  BatchStream stream(DataLoader(tokenised_rows(work.entry(), make).rows,
                                {.micro_batch_size = micro_batch, .pad_to = 512}));
  for (auto _ : state) {
    benchmark::DoNotOptimize(stream.next());
    if (step_us == 0) continue;
    state.PauseTiming();
    std::this_thread::sleep_for(std::chrono::microseconds(step_us));
    state.ResumeTiming();
  }
  state.counters["rows_per_second"] = benchmark::Counter(
      static_cast<double>(state.iterations() * micro_batch), benchmark::Counter::kIsRate);
}

void register_all(const Work& work) {
  const auto add = [](const char* name, auto fn) {
    return benchmark::RegisterBenchmark(name, fn)->UseRealTime();
  };
  add("tokenizer/encode", [&](benchmark::State& s) { encode(s, work); });
  add("rows/first_time", [&](benchmark::State& s) { first_time(s, work); })
      ->Unit(benchmark::kSecond)
      ->Iterations(1);
  add("rows/again", [&](benchmark::State& s) { again(s, work); })->Unit(benchmark::kMillisecond);
  add("loader/batches_of_16", [&](benchmark::State& s) {
    batches(s, work, 16, 0);
  })->Unit(benchmark::kMicrosecond);
  add("loader/wait_in_16ms_steps", [&](benchmark::State& s) { batches(s, work, 16, 16'000); })
      ->Unit(benchmark::kMicrosecond)
      ->Iterations(200);
}

int write_file(const std::string& kind, const std::string& path, int64_t amount) {
  std::ofstream out(path, std::ios::binary);
  kind == "squad" ? write_squad(out, amount) : write_lines(out, amount);
  out.flush();
  if (out.good()) return 0;
  std::cerr << path << ": cannot be written\n";
  return exit_code(ErrorCode::kDataLoss);
}

// Parses Google Benchmark's flags and the program's own; returns an exit code if the program ends
// here.
std::optional<int> parse(int argc, char** argv, Options& options) {
  const std::string usage =
      "usage: bench_data [--tokenizer DIR] [--questions N] [--benchmark_...]\n"
      "       bench_data --write squad FILE QUESTIONS | lines FILE BYTES\n";
  bench::start(&argc, argv, usage);
  for (int i = 1; i < argc; i += 2) {
    const std::string flag = argv[i];
    if (flag == "--write" && i + 3 < argc) {
      return write_file(argv[i + 1], argv[i + 2], std::atoll(argv[i + 3]));
    }
    if (flag == "--tokenizer" && i + 1 < argc) {
      options.tokenizer = argv[i + 1];
    } else if (flag == "--questions" && i + 1 < argc) {
      options.questions = std::atoll(argv[i + 1]);
    } else {
      std::cerr << "unknown flag or missing value: " << flag << "\n" << usage;
      return exit_code(ErrorCode::kInvalidArgument);
    }
  }
  return std::nullopt;
}

}  // namespace
}  // namespace tessera::benchmarks

int main(int argc, char** argv) {
  using namespace tessera;
  benchmarks::Options options;
  if (const auto code = benchmarks::parse(argc, argv, options)) return *code;
  try {
    const benchmarks::Work work(options);
    benchmark::AddCustomContext("cores", std::to_string(allowed_cores().size()));
    benchmark::AddCustomContext("tokenizer", work.tokenizer.origin());
    benchmark::AddCustomContext("questions", std::to_string(options.questions));
    benchmarks::register_all(work);
    benchmark::RunSpecifiedBenchmarks();
  } catch (const Error& error) {
    std::cerr << error.what() << "\n";
    return exit_code(error.code());
  }
}
