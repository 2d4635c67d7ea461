// Step time and memory of every strategy on random token ids. One Google Benchmark row a
// configuration and one JSON line with the keys that the rivals' scripts print, so that lines can
// be joined:
//   mpirun -n 4 bench_strategies --model_config bloom-560m --strategies zero1,zero2 --micro_batches
//   4,16 --seq 512 --dtype bf16 --steps 20 mpirun -n 2 bench_strategies --model_config bloom-tiny
//   --strategies ddp,zero3
// Every rank is a process (Google Benchmark's registry is one a process) and runs the same number
// of iterations; rank 0 reports.
#include <ATen/ATen.h>
#include <ATen/DeviceAccelerator.h>
#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <iostream>
#include <map>
#include <sstream>

#include "tessera/backends/parallel_config.h"
#include "tessera/comm/device_mesh.h"
#include "tessera/comm/launch.h"
#include "tessera/core/error.h"
#include "tessera/models/bloom.h"
#include "tessera/optim/adamw.h"
#include "tessera/train/trainer.h"

namespace tessera {
namespace {

struct Options {
  std::map<std::string, std::string> values{{"model_config", "bloom-tiny"},
                                            {"strategies", "single"},
                                            {"micro_batches", "4"},
                                            {"accumulation", "1"},
                                            {"seq", "128"},
                                            {"dtype", "fp32"},
                                            {"steps", "10"},
                                            {"warmup", "3"},
                                            {"backend", "auto"},
                                            {"overlap", "true"},
                                            {"bucket_bytes", "26214400"},
                                            {"prefetch", "1"},
                                            {"reduce_at_boundary", "false"}};

  void parse(int argc, char** argv) {
    for (int i = 1; i < argc; ++i) {
      const std::string flag = argv[i];
      check(flag.rfind("--", 0) == 0 && values.count(flag.substr(2)) > 0 && i + 1 < argc,
            ErrorCode::kInvalidArgument, "unknown flag or missing value: ", flag);
      values[flag.substr(2)] = argv[++i];
    }
  }
  const std::string& text(const std::string& key) const { return values.at(key); }
  int64_t number(const std::string& key) const { return std::stoll(values.at(key)); }
  std::vector<std::string> list(const std::string& key) const {
    std::vector<std::string> items;
    std::istringstream stream(values.at(key));
    for (std::string item; std::getline(stream, item, ',');) items.push_back(item);
    return items;
  }
};

at::ScalarType parse_dtype(const std::string& name) {
  if (name == "bf16") return at::kBFloat16;
  if (name == "fp16") return at::kHalf;
  check(name == "fp32", ErrorCode::kInvalidArgument, "--dtype is ", name,
        "; use fp32, bf16 or fp16");
  return at::kFloat;
}

double now_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

MicroBatch random_batch(int64_t rows, int64_t sequence, int64_t vocabulary, at::Device device) {
  MicroBatch batch;
  const auto options = at::TensorOptions().dtype(at::kLong).device(device);
  batch.input_ids = at::randint(vocabulary, {rows, sequence}, options);
  batch.labels = at::randint(vocabulary, {rows, sequence}, options);
  batch.sample_count = rows;
  batch.token_count = batch.target_count = rows * sequence;
  return batch;
}

// One configuration on one rank: builds, warms up, and runs one step per benchmark iteration.
class StepBenchmark {
 public:
  StepBenchmark(Communicator& world, const Options& options, std::string strategy,
                int64_t micro_batch)
      : world_(world),
        options_(options),
        strategy_name_(std::move(strategy)),
        micro_batch_(micro_batch) {}

  void run(benchmark::State& state) {
    const at::Device device = world_.device();
    DeviceMesh mesh(world_, {.data = world_.size()});
    ParallelConfig config{.strategy = strategy_name_};
    config.precision.parameter = parse_dtype(options_.text("dtype"));
    config.overlap = options_.text("overlap") == "true";
    config.bucket_bytes = options_.number("bucket_bytes");
    config.prefetch_blocks = static_cast<int>(options_.number("prefetch"));
    config.reduce_at_boundary = options_.text("reduce_at_boundary") == "true";
    const BloomConfig bloom = BloomConfig::preset(options_.text("model_config"));
    const ModelSpec model = make_bloom_causal(bloom);
    auto strategy = make_strategy(config, mesh);
    const double build_begin = now_s();
    strategy->attach(model, {.device = device, .seed = 1}, make_adamw({.weight_decay = 0.01}));
    build_s_ = now_s() - build_begin;

    TrainerOptions trainer_options;
    trainer_options.device = device;
    trainer_options.schedule = {.kind = LrScheduleKind::kConstant, .peak = 1e-4};
    trainer_options.loss_scaler.enabled = config.precision.parameter == at::kHalf;
    Trainer trainer(*strategy, trainer_options);
    const int64_t sequence = options_.number("seq");
    const int64_t accumulation = options_.number("accumulation");
    auto step = [&] {
      std::vector<MicroBatch> batches;
      for (int64_t a = 0; a < accumulation; ++a) {
        batches.push_back(random_batch(micro_batch_, sequence, bloom.vocabulary, device));
      }
      bool given = false;
      trainer.fit([&] { return std::exchange(given, true) ? std::vector<MicroBatch>{} : batches; },
                  [&](const StepReport& report) { loss_ = report.loss; });
      synchronize();
    };
    for (int64_t i = 0; i < options_.number("warmup"); ++i) step();
    const int64_t sent = mesh.axis(Axis::kData).bytes_sent();
    if (device.is_cuda()) {
      at::accelerator::resetPeakStats(device.index());
      device_allocations_ = raw_allocations(device);
    }
    world_.barrier();
    for (auto _ : state) {
      const double begin = now_s();
      step();
      times_.push_back(now_s() - begin);
      state.SetIterationTime(times_.back());
    }
    bytes_sent_ = (mesh.axis(Axis::kData).bytes_sent() - sent) /
                  std::max<int64_t>(1, static_cast<int64_t>(times_.size()));
    if (device.is_cuda()) {
      const auto stats = at::accelerator::getDeviceStats(device.index());
      peak_allocated_ = stats.allocated_bytes[0].peak;
      peak_reserved_ = stats.reserved_bytes[0].peak;
      device_allocations_ = raw_allocations(device) - device_allocations_;
    }
    at::Tensor peaks = at::tensor({peak_allocated_, peak_reserved_}, at::kLong).to(device);
    world_.all_reduce(peaks, ReduceOp::kMax).wait();
    peaks = peaks.cpu();
    peak_allocated_ = peaks[0].item<int64_t>();
    peak_reserved_ = peaks[1].item<int64_t>();
    memory_ = strategy->memory();
    const double tokens = static_cast<double>(micro_batch_ * sequence * accumulation);
    const double tokens_per_s = tokens / median();
    state.counters["tokens/s/rank"] = tokens_per_s;
    state.counters["peak_MiB"] = static_cast<double>(peak_allocated_) / (1 << 20);
    if (world_.rank() == 0) print(model, strategy->parameter_count(), sequence, tokens_per_s);
  }

 private:
  static int64_t raw_allocations(at::Device device) {
    return at::accelerator::getDeviceStats(device.index()).num_device_alloc;
  }
  void synchronize() const {
    if (world_.device().is_cuda()) at::accelerator::synchronizeDevice(world_.device().index());
  }
  double median() const {
    std::vector<double> sorted = times_;
    std::sort(sorted.begin(), sorted.end());
    return sorted[sorted.size() / 2];
  }
  void print(const ModelSpec& model, int64_t parameters, int64_t sequence, double tokens_per_s) {
    const auto [fastest, slowest] = std::minmax_element(times_.begin(), times_.end());
    std::ostringstream line;
    line.setf(std::ios::fixed);
    line.precision(2);
    line << "TESSERA {\"model\": \"" << model.name << "\", \"mode\": \"" << strategy_name_
         << "\", \"mb\": " << micro_batch_ << ", \"seq\": " << sequence
         << ", \"accum\": " << options_.number("accumulation") << ", \"dtype\": \""
         << options_.text("dtype") << "\", \"world\": " << world_.size()
         << ", \"params\": " << parameters << ", \"step_ms\": " << median() * 1e3
         << ", \"min_ms\": " << *fastest * 1e3 << ", \"max_ms\": " << *slowest * 1e3
         << ", \"tok_s_gpu\": " << tokens_per_s
         << ", \"tflops\": " << model.flops_per_token(sequence) * tokens_per_s / 1e12
         << ", \"peak_alloc_mib\": " << (peak_allocated_ >> 20)
         << ", \"peak_resv_mib\": " << (peak_reserved_ >> 20)
         << ", \"parameter_mib\": " << (memory_.parameter_bytes >> 20)
         << ", \"gradient_mib\": " << (memory_.gradient_bytes >> 20)
         << ", \"optimizer_mib\": " << (memory_.optimizer_bytes >> 20)
         << ", \"buffer_mib\": " << (memory_.buffer_bytes >> 20)
         << ", \"comm_mib_per_step\": " << (bytes_sent_ >> 20)
         << ", \"device_allocations\": " << device_allocations_ << ", \"build_s\": " << build_s_
         << ", \"loss\": " << loss_ << "}";
    std::cout << line.str() << std::endl;
  }

  Communicator& world_;
  const Options& options_;
  std::string strategy_name_;
  int64_t micro_batch_;
  std::vector<double> times_;
  double build_s_ = 0, loss_ = 0;
  int64_t peak_allocated_ = 0, peak_reserved_ = 0, bytes_sent_ = 0, device_allocations_ = 0;
  StrategyMemory memory_;
};

// Keeps every rank but the first silent.
class SilentReporter : public benchmark::BenchmarkReporter {
 public:
  bool ReportContext(const Context&) override { return true; }
  void ReportRuns(const std::vector<Run>&) override {}
};

void run_rank(Communicator& world, const Options& options) {
  std::vector<std::unique_ptr<StepBenchmark>> benchmarks;
  for (const auto& strategy : options.list("strategies")) {
    for (const auto& micro_batch : options.list("micro_batches")) {
      benchmarks.push_back(
          std::make_unique<StepBenchmark>(world, options, strategy, std::stoll(micro_batch)));
      StepBenchmark* self = benchmarks.back().get();
      const std::string name = concat(options.text("model_config"), "/", strategy, "/mb",
                                      micro_batch, "/ranks", world.size());
      benchmark::RegisterBenchmark(name.c_str(), [self](benchmark::State& s) { self->run(s); })
          ->Iterations(options.number("steps"))
          ->UseManualTime()
          ->Unit(benchmark::kMillisecond);
    }
  }
  if (world.rank() == 0) {
    benchmark::RunSpecifiedBenchmarks();
  } else {
    SilentReporter silent;
    benchmark::RunSpecifiedBenchmarks(&silent);
  }
  benchmark::ClearRegisteredBenchmarks();
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  using namespace tessera;
  Options options;
  try {
    options.parse(argc, argv);
  } catch (const Error& error) {
    std::cerr << error.what() << "\n";
    return exit_code(error.code());
  }
  return run_job(
      {.transport = options.text("backend")},
      [&](Communicator& world, const LaunchInfo&, ControlChannel&) { run_rank(world, options); });
}
