#include "examples/plan/run_plan.h"

#include <algorithm>
#include <ostream>
#include <utility>

#include "examples/common/deepspeed.h"
#include "examples/common/foreign_config.h"
#include "examples/common/memory_advice.h"
#include "examples/common/tool.h"
#include "examples/plan/bandwidths.h"
#include "examples/plan/fit.h"
#include "examples/plan/plan.h"
#include "examples/plan/tables.h"
#include "tessera/core/device.h"
#include "tessera/core/error.h"
#include "tessera/core/host_memory.h"

namespace tessera::programs {
namespace {

struct PlanOptions {
  std::string task = "squad", card = "auto", bandwidths;
  int64_t gpus_per_host = 0;
  double memory_gib = 0, link_gb_per_s = 0, network_gb_per_s = 0, host_gb_per_s = 0;
  double efficiency = 0;
  bool as_json = false, fit = false;
};

void add_flags(FlagSet& flags, PlanOptions& o) {
  std::vector<std::string> cards = card_names();
  cards.insert(cards.begin(), "auto");
  flags.section("Plan (all other flags are those of the fine-tuning program)");
  flags.add("task", &o.task, "which program would run", {"squad", "causal", "classification"});
  flags.add("card", &o.card, "what a rank runs on; auto: this host's", cards);
  flags.add("gpus_per_host", &o.gpus_per_host, "ranks that share a host; 0: 8, all on the CPU");
  flags.add("memory_gib", &o.memory_gib, "of one rank, instead of the card's");
  flags.add("bandwidths", &o.bandwidths,
            "FILE that tessera-env --json or bench_collectives --benchmark_format=json wrote");
  flags.add("link_gb_per_s", &o.link_gb_per_s, "between the GPUs of a host, bus bandwidth");
  flags.add("network_gb_per_s", &o.network_gb_per_s, "between hosts, for each GPU");
  flags.add("host_gb_per_s", &o.host_gb_per_s, "between a GPU and its host");
  flags.add("efficiency", &o.efficiency, "of matrix products, of the card's peak; 0: 0.5");
  flags.add("fit", &o.fit,
            "search layouts and micro-batches for the fastest that fits, at this global batch");
  flags.add("json", &o.as_json, "one JSON object instead of tables");
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
          " is not known; name one that is like it, with --memory_gib");
    card = *known;
  }
  if (card.device.empty()) {
    card.memory_bytes =
        static_cast<double>(available_host_memory()) / static_cast<double>(ranks_of_host);
  }
  if (!o.bandwidths.empty()) read_bandwidths(o.bandwidths, card);
  const auto replace = [](double value, double unit, double& to) {
    if (value > 0) to = value * unit;
  };
  replace(o.memory_gib, 1 << 30, card.memory_bytes);
  replace(o.link_gb_per_s, 1e9, card.link_bytes_per_s);
  replace(o.network_gb_per_s, 1e9, card.network_bytes_per_s);
  replace(o.host_gb_per_s, 1e9, card.host_bytes_per_s);
  return card;
}

void check_values(const PlanOptions& o) {
  const std::pair<const char*, double> not_negative[] = {
      {"gpus_per_host", static_cast<double>(o.gpus_per_host)},
      {"memory_gib", o.memory_gib},
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
}

Program program_of(const std::string& task) {
  return task == "squad"    ? Program::kSquad
         : task == "causal" ? Program::kText
                            : Program::kClassification;
}

int plan(const std::vector<std::string>& arguments, std::ostream& out, std::ostream& err) {
  FlagSet flags(
      "tessera-plan",
      "What a run would hold and send, before anything is loaded. --ranks N: of the job.");
  PlanOptions o;
  add_flags(flags, o);
  const std::vector<std::string> passed = flags.parse_known(arguments);
  const Program program = program_of(o.task);
  FlagSet train_flags("tessera-plan", "");
  TrainOptions train;
  add_train_flags(train_flags, train, program);
  if (flags.help_requested()) {
    out << flags.help() << train_flags.help();
    return 0;
  }
  train_flags.parse(passed);
  check_values(o);
  if (train.ranks > 1 && !train_flags.given("strategy")) train.strategy = "ddp";
  if (!train.deepspeed.empty()) {
    refuse_foreign_config(train.deepspeed);
    apply_deepspeed(DeepSpeedFile::read(train.deepspeed), train.ranks, train, train_flags);
  }
  if (train_flags.print_config_requested()) {
    out << train_flags.config_json() << "\n";
    return 0;
  }
  check(train.ranks >= 1 && train.ranks <= 65536, ErrorCode::kInvalidArgument, "--ranks is ",
        train.ranks, "; it must be at least 1 and at most 65536");
  Place place{.ranks = train.ranks};
  const bool on_cpu = o.card == "cpu" || (o.card == "auto" && gpu_count() == 0);
  place.ranks_of_host = o.gpus_per_host > 0 ? o.gpus_per_host : on_cpu ? train.ranks : 8;
  place.card = card_of(o, std::min(place.ranks_of_host, place.ranks));
  if (o.efficiency > 0) place.efficiency = o.efficiency;
  train.ranks = 1;  // of the place now: those that are threads have a limit
  const Prepared model = prepare_shapes(train, program);
  if (o.fit) {
    const Fit fit = find_fit(model, train, place);
    out << (o.as_json ? fit_json(fit, place) : fit_text(fit, place));
    return fit.fits.empty() ? exit_code(ErrorCode::kResourceExhausted) : 0;
  }
  const RunPlan run = plan_run(model, train, place);
  out << (o.as_json ? plan_json(model, run, place) : plan_text(model, run, place));
  if (run.fits(place.card)) return 0;
  const std::string reason =
      concat("does not fit into ", mebibytes(place.card.memory_bytes), " of one ", place.card.name,
             ": ", mebibytes(run.largest(place.card).needed(place.card)), " are needed");
  err << "tessera-plan: " << memory_advice(model, place.ranks, reason, !place.card.device.empty())
      << ". --fit searches\n";
  return exit_code(ErrorCode::kResourceExhausted);
}

}  // namespace

int run_plan(const std::vector<std::string>& arguments, std::ostream& out, std::ostream& err) {
  return run_tool("tessera-plan", out, err, [&] { return plan(arguments, out, err); });
}

}  // namespace tessera::programs
