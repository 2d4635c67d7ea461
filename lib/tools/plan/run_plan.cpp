// SPDX-License-Identifier: MIT
#include "lib/tools/plan/run_plan.h"

#include <algorithm>
#include <optional>
#include <ostream>
#include <utility>

#include "lib/core/host_memory.h"
#include "lib/core/number_text.h"
#include "lib/interop/deepspeed.h"
#include "lib/interop/foreign_config.h"
#include "lib/interop/foreign_flags.h"
#include "lib/run/memory_advice.h"
#include "lib/run/recomputation.h"
#include "lib/settings/idle_flags.h"
#include "lib/settings/layout.h"
#include "lib/settings/memory_size.h"
#include "lib/settings/tool.h"
#include "lib/tools/plan/check_layout.h"
#include "lib/tools/plan/fit.h"
#include "lib/tools/plan/plan.h"
#include "tessera/core/device.h"
#include "tessera/core/error.h"
#include "tessera/core/json.h"

namespace tessera::programs {
namespace {

struct PlanOptions {
  std::string task = "squad", card = "auto", bandwidths, gpu_memory;
  int64_t gpus_per_host = 0;
  double link_gb_per_s = 0, network_gb_per_s = 0, host_gb_per_s = 0;
  double efficiency = 0;
  bool as_json = false, fit = false, check = false;
};

std::vector<std::string> task_names() { return {"squad", "causal", "classification", "chat"}; }

void add_flags(FlagSet& flags, PlanOptions& o) {
  std::vector<std::string> cards = card_names();
  cards.insert(cards.begin(), "auto");
  flags.section("Plan (all other flags are those of the fine-tuning program)");
  flags.add("task", &o.task, "which program would run", task_names());
  flags.add("card", &o.card, "what a rank runs on; auto: this host's", cards);
  flags.add("gpus_per_host", &o.gpus_per_host, "ranks that share a host; 0: 8, all on the CPU");
  flags.add("gpu_memory", &o.gpu_memory, "of one GPU, instead of the card's: 80GiB, 24000MB");
  flags.add("bandwidths", &o.bandwidths,
            "FILE that tessera-env --json or bench_collectives --benchmark_format=json wrote");
  flags.add("link_gb_per_s", &o.link_gb_per_s, "between the GPUs of a host, bus bandwidth");
  flags.add("network_gb_per_s", &o.network_gb_per_s, "between hosts, for each GPU");
  flags.add("host_gb_per_s", &o.host_gb_per_s, "between a GPU and its host");
  flags.add("efficiency", &o.efficiency,
            "of matrix products, of the card's peak; 0: 0.65, on a CPU 0.5");
  flags.add("fit", &o.fit,
            "search layouts and micro-batches for the fastest that fits, at this global batch");
  flags.add("check", &o.check,
            "run two steps dry and match what all ranks call, instead of a plan");
  flags.add("json", &o.as_json, "one JSON object instead of tables");
}

double gpu_memory_of(const PlanOptions& o) {
  const std::optional<double> bytes = parse_memory_size(o.gpu_memory);
  check(bytes.has_value(), ErrorCode::kInvalidArgument,
        "--gpu_memory: expected a number above 0 and its unit (MiB, ",
        "GiB, TiB, MB, GB or TB), as 80GiB, found '", o.gpu_memory, "'");
  return *bytes;
}

constexpr double kGiga = 1e9;

// "GPU 0 to GPU 1": "330.1 GB/s"
void read_environment(const Json& bandwidth, Card& card) {
  double between = 0, host = 0, own = 0, triad = 0;
  for (const auto& [what, value] : bandwidth.members()) {
    const double rate = leading_number(value.as_string()) * kGiga;
    const bool to_gpu = what.find("to GPU") != std::string::npos;
    if (what.starts_with("GPU") && to_gpu) between = std::max(between, rate);
    if (what.starts_with("host to")) host = std::max(host, rate);
    if (what.find("memory of GPU") != std::string::npos) own = std::max(own, rate);
    if (what.starts_with("host memory")) triad = std::max(triad, rate);
  }
  if (between > 0) card.link_bytes_per_s = between;
  if (host > 0) card.host_bytes_per_s = host;
  if (card.device.empty() && triad > 0) card.memory_bytes_per_s = triad;
  if (!card.device.empty() && own > 0) card.memory_bytes_per_s = own;
}

// Sets the card's link speeds from a file: tessera-env --json, or bench_collectives
// --benchmark_format=json, of which the fastest collective counts. Throws Error(kDataLoss) for
// other files.
void read_bandwidths(const std::string& path, Card& card) {
  const Json file = Json::parse_file(path);
  if (const auto bandwidth = file.find("bandwidth")) return read_environment(*bandwidth, card);
  const auto benchmarks = file.find("benchmarks");
  check(benchmarks.has_value(), ErrorCode::kDataLoss, path,
        ": expected what tessera-env --json or bench_collectives --benchmark_format=json writes");
  double best = 0;
  for (const Json& run : benchmarks->items()) {
    best = std::max(best, run.get("busbw_GB_per_s", 0.0) * kGiga);
  }
  check(best > 0, ErrorCode::kDataLoss, path, ": no benchmark has busbw_GB_per_s");
  card.link_bytes_per_s = best;
}

Card card_of(const PlanOptions& o, int64_t ranks_of_host) {
  Card card;
  if (o.card != "auto") {
    card = card_named(o.card);
  } else if (gpu_count() == 0) {
    card = card_named("cpu");
  } else {
    const std::string device = device_name(at::Device(at::kCUDA, 0));
    const auto known = card_of_device(device);
    check(known.has_value(), ErrorCode::kInvalidArgument, "--card: ", device,
          " is not known; name one that is like it, with --gpu_memory");
    card = *known;
  }
  if (card.device.empty()) {
    card.memory_bytes =
        static_cast<double>(available_host_memory()) / static_cast<double>(ranks_of_host);
  }
  if (!o.bandwidths.empty()) read_bandwidths(o.bandwidths, card);
  if (!o.gpu_memory.empty()) {
    check(!card.device.empty(), ErrorCode::kInvalidArgument, "--gpu_memory ", o.gpu_memory,
          " is a GPU's, and --card ", o.card, " is this host without one; name a GPU, --card h100");
    card.memory_bytes = gpu_memory_of(o);
  }
  const auto replace = [](double value, double unit, double& to) {
    if (value > 0) to = value * unit;
  };
  replace(o.link_gb_per_s, 1e9, card.link_bytes_per_s);
  replace(o.network_gb_per_s, 1e9, card.network_bytes_per_s);
  replace(o.host_gb_per_s, 1e9, card.host_bytes_per_s);
  return card;
}

void check_values(const PlanOptions& o) {
  const std::pair<const char*, double> not_negative[] = {
      {"gpus_per_host", static_cast<double>(o.gpus_per_host)},
      {"link_gb_per_s", o.link_gb_per_s},
      {"network_gb_per_s", o.network_gb_per_s},
      {"host_gb_per_s", o.host_gb_per_s},
      {"efficiency", o.efficiency}};
  for (const auto& [name, value] : not_negative) {
    check(value >= 0, ErrorCode::kInvalidArgument, "--", name, " is ", value,
          "; it must not be negative");
  }
  check(o.efficiency <= 1, ErrorCode::kInvalidArgument, "--efficiency is ", o.efficiency,
        "; it is a share of the peak, at most 1");
  check(!o.check || (!o.fit && !o.as_json), ErrorCode::kInvalidArgument,
        "--check prints a sentence; leave out --fit and --json");
}

Program program_of(const std::string& task) {
  return task == "squad"    ? Program::kSquad
         : task == "causal" ? Program::kText
         : task == "chat"   ? Program::kChat
                            : Program::kClassification;
}

int plan(const std::vector<std::string>& arguments, std::ostream& out, std::ostream& err) {
  PlanOptions o;
  FlagSet task_flag("tessera-plan", "");  // the program that defines the other flags
  task_flag.add("task", &o.task, "", task_names());
  task_flag.parse_known(arguments);
  const Program program = program_of(o.task);
  FlagSet flags(
      "tessera-plan",
      "What a run would hold and send, before anything is loaded. --ranks N: of the job.");
  TrainOptions train;
  add_flags(flags, o);
  add_train_flags(flags, train, program, find_foreign);
  flags.parse(arguments);
  if (flags.help_requested()) {
    out << flags.help();
    return 0;
  }
  check(program_of(o.task) == program, ErrorCode::kInvalidArgument,
        "--task: say it on the command line, not in the file of --config");
  check_values(o);
  choose_strategy(flags, train.run.ranks, train);
  if (!train.run.deepspeed.empty()) {
    refuse_foreign_config(train.run.deepspeed);
    apply_deepspeed(DeepSpeedFile::read(train.run.deepspeed), train.run.ranks, train, flags);
  }
  for (const IdleFlag& idle : reset_idle_flags(flags, train, train.run.ranks)) {
    err << "tessera-plan: " << idle.text << "\n";
  }
  if (flags.print_config_requested()) {
    out << flags.config_json() << "\n";
    return 0;
  }
  check(train.run.ranks >= 1 && train.run.ranks <= 65536, ErrorCode::kInvalidArgument,
        "--ranks is ", train.run.ranks, "; it must be at least 1 and at most 65536");
  PlannedHosts hosts{.ranks = train.run.ranks};
  const bool on_cpu = o.card == "cpu" || (o.card == "auto" && gpu_count() == 0);
  hosts.ranks_of_host = o.gpus_per_host > 0 ? o.gpus_per_host : on_cpu ? train.run.ranks : 8;
  hosts.card = card_of(o, std::min(hosts.ranks_of_host, hosts.ranks));
  if (o.efficiency > 0) hosts.efficiency = o.efficiency;
  train.run.ranks = 1;  // of the current setting: ranks as threads have a limit
  const Prepared model = prepare_shapes(train, program);
  if (o.check) return check_layout(model, train, hosts, out, err);
  if (o.fit) {
    const Fit fit = find_fit(model, train, hosts);
    out << (o.as_json ? fit_json(fit, hosts) : fit_text(fit, hosts));
    return fit.fits.empty() ? exit_code(ErrorCode::kResourceExhausted) : 0;
  }
  const RunPlan run = plan_run(model, train, hosts);
  out << (o.as_json ? plan_json(model, run, hosts) : plan_text(model, run, hosts));
  if (run.fits(hosts.card)) return 0;
  std::string reason = missing_activation_memory(run.recomputation, train.memory.activations);
  if (reason.empty()) {
    reason = concat("does not fit into ", mebibytes(hosts.card.memory_bytes), " of one ",
                    hosts.card.name, ": ", mebibytes(run.largest(hosts.card).needed(hosts.card)),
                    " are needed");
  }
  err << "tessera-plan: "
      << memory_advice(model, hosts.ranks, reason, !hosts.card.device.empty(),
                       blocks_of(run.recomputation))
      << ". --fit searches\n";
  return exit_code(ErrorCode::kResourceExhausted);
}

}  // namespace

int run_plan(const std::vector<std::string>& arguments, std::ostream& out, std::ostream& err) {
  return run_tool("tessera-plan", out, err, [&] { return plan(arguments, out, err); });
}

}  // namespace tessera::programs
