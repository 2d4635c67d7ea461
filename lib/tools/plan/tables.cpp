// SPDX-License-Identifier: MIT
#include <algorithm>
#include <cstdio>
#include <utility>
#include <vector>

#include "lib/core/number_text.h"
#include "lib/core/units.h"
#include "lib/metrics/table.h"
#include "lib/run/recomputation.h"
#include "lib/tools/plan/plan.h"
#include "tessera/core/error.h"
#include "tessera/core/json.h"

namespace tessera::programs {
namespace {

constexpr double kGiB = 1024 * kMiB;

std::string mebibytes(double bytes) { return with_thousands(printed("%.1f", bytes / kMiB)); }

using Category = std::pair<const char*, double>;

std::vector<Category> device_categories(const MemoryPlan& memory) {
  return {{"parameters", memory.state.parameter_bytes},
          {"gradients", memory.state.gradient_bytes},
          {"optimizer", memory.state.optimizer_bytes},
          {"buffers", memory.state.buffer_bytes},
          {"embedding", memory.activations.embedding},
          {"layers", memory.activations.layers},
          {"gradients of activations", memory.activations.gradients},
          {"deferred weight gradients", memory.activations.deferred},
          {"running", memory.activations.running},
          {"constants", memory.activations.constants},
          {"inputs", memory.activations.inputs},
          {"workspace", memory.workspace},
          {"fragments", memory.fragments},
          {"communicators", memory.communicators},
          {"context", memory.context}};
}

// Bytes of tensors during other activities, and memory outside of tensors; zeros: does not occur.
std::vector<Category> other_categories(const RunPlan& run, const MemoryPlan& memory) {
  const auto tensors_in = [&](const Activations& pass) {
    return pass.total() > 0 ? memory.state.device_bytes() + pass.total() + memory.workspace : 0;
  };
  return {{"tensors in evaluation", tensors_in(memory.evaluation)},
          {"tensors in generation", tensors_in(memory.generation)},
          {"key/value cache of it", memory.generation.cache},
          {"copy of the state", run.saves ? memory.state.saved_bytes : 0}};
}

// One line per category that occurs, one column per stage.
std::string memory_text(const RunPlan& run, const Card& card) {
  std::string text = run.stages.size() > 1 ? "memory of one rank of each stage, MiB\n"
                                           : "memory of one rank, MiB\n";
  const metrics::Column mebibytes_of_stage{.scale = 1 / kMiB, .decimals = 1, .width = 12};
  metrics::Table table{.columns = {{.is_text = true, .width = 28}}};
  table.columns.resize(1 + run.stages.size(), mebibytes_of_stage);
  const auto line = [&](const char* name, const auto& bytes_of) {
    std::vector<metrics::Cell> cells{{.text = concat("  ", name)}};
    bool any = false;
    for (const MemoryPlan& stage : run.stages) {
      cells.push_back({.number = bytes_of(stage)});
      any |= cell_text(cells.back(), mebibytes_of_stage) != "0.0";
    }
    if (any) table.rows.push_back(std::move(cells));
  };
  const auto names = device_categories(run.stages.front());
  for (size_t i = 0; i < names.size(); ++i) {
    line(names[i].first,
         [&](const MemoryPlan& stage) { return device_categories(stage)[i].second; });
  }
  line("tensors", [](const MemoryPlan& stage) { return stage.tensors(); });
  const auto others = other_categories(run, run.stages.front());
  for (size_t i = 0; i < others.size(); ++i) {
    line(others[i].first,
         [&](const MemoryPlan& stage) { return other_categories(run, stage)[i].second; });
  }
  line("on the device", [](const MemoryPlan& stage) { return stage.device_bytes(); });
  line("on the host", [](const MemoryPlan& stage) { return stage.state.host_bytes; });
  const double needed = run.largest(card).needed(card);
  return text + metrics::text_table(table, {.between = 0, .titles = false}) +
         printed("  %s of %s MiB (%.0f %%) of one %s\n", mebibytes(needed).c_str(),
                 mebibytes(card.memory_bytes).c_str(), 100 * needed / card.memory_bytes,
                 card.device.empty() ? "rank's share of this host" : card.name.c_str());
}

std::string recomputation_text(const RunPlan& run) {
  if (run.recomputation.empty()) return "";
  return printed(
      "recomputed in backward: %s, %.1f %% more operations; activations may take %s MiB\n",
      counts_text(run.recomputation).c_str(), 100 * run.more_operations,
      mebibytes(least_allowed(run.recomputation)).c_str());
}

std::string messages_text(const RunPlan& run) {
  if (run.messages.empty()) return "";
  metrics::Table table{.columns = {{.title = "sent by a rank in a step", .is_text = true},
                                   {.title = "as", .is_text = true},
                                   {.title = "ranks", .decimals = 0, .thousands = false},
                                   {.title = "MiB", .scale = 1 / kMiB, .decimals = 1},
                                   {.title = "GB/s", .decimals = 1},
                                   {.title = "ms", .scale = 1e3, .decimals = 3}}};
  const bool links = std::ranges::any_of(run.messages, &Message::between_hosts);
  if (links) table.columns.push_back({.title = "link", .is_text = true});
  for (const Message& message : run.messages) {
    const Traffic& traffic = message.traffic;
    table.rows.push_back({{.text = "  " + traffic.what},
                          {.text = traffic.operation},
                          {.number = traffic.ranks},
                          {.number = traffic.bytes},
                          {.number = message.bytes_per_s / 1e9},
                          {.number = message.seconds()}});
    if (!links) continue;
    table.rows.back().push_back({.text = message.between_hosts ? "between hosts" : "in a host"});
  }
  return metrics::text_table(table);
}

// The result in one sentence: "llama-3.2-1b on 4 x h100: zero2 fits with 13.8 of 79.6 GiB a rank; a
// step of 32 x 512 tokens takes 67.4 ms, 243,171 tokens/s."
std::string sentence(const Prepared& model, const RunPlan& run, const PlannedHosts& hosts) {
  const Card& card = hosts.card;
  const double needed = run.largest(card).needed(card);
  const std::string where =
      card.device.empty()
          ? concat(hosts.ranks, hosts.ranks == 1 ? " rank" : " ranks", " of this host")
          : concat(hosts.ranks, " x ", card.name);
  const std::string room = concat(printed("%.1f", needed / kGiB), " of ",
                                  printed("%.1f", card.memory_bytes / kGiB), " GiB a rank");
  const std::string verdict = run.fits(card)               ? "fits with " + room
                              : needed > card.memory_bytes ? "does not fit: it needs " + room
                                                           : "does not meet --activation_memory";
  return concat(model.model.name, " on ", where, ": ", run.options.parallel.strategy, " ", verdict,
                "; a step of ", with_thousands(concat(run.global_batch)), " x ",
                run.options.data.max_seq_length, " tokens takes ",
                with_thousands(printed("%.1f", run.time.total() * 1e3)), " ms, ",
                with_thousands(printed("%.0f", run.tokens_per_s)), " tokens/s.\n");
}

std::vector<Category> times_of(const StepTime& time) {
  return {{"compute", time.compute},
          {"bubble", time.bubble},
          {"exposed communication", time.exposed},
          {"optimizer", time.optimizer},
          {"offload", time.offload}};
}

}  // namespace

std::string plan_text(const Prepared& model, const RunPlan& run, const PlannedHosts& hosts) {
  const TrainOptions& o = run.options;
  const ParameterCount count = parameter_count(model.model);
  const std::string trained =
      count.trained == count.all
          ? ""
          : concat(with_thousands(concat(count.trained)), " of them trainable, ");
  std::string text =
      sentence(model, run, hosts) +
      concat(with_thousands(concat(count.all)), " parameters, ", trained, o.parallel.strategy,
             " on ", hosts.ranks, " rank(s) (pipeline ", run.mesh.pipeline, " x data ",
             run.mesh.data, " x tensor ", run.mesh.tensor,
             run.mesh.context == 1 ? "" : concat(" x context ", run.mesh.context),
             run.mesh.expert == 1 ? "" : concat(", experts on ", run.mesh.expert), "), ",
             name_of(o.parallel.precision.parameter), ", micro-batch ",
             o.training.per_device_train_batch_size, " x ", o.data.max_seq_length,
             ", global batch ", run.global_batch, ", ", hosts.card.name, "\n");
  text += memory_text(run, hosts.card) + recomputation_text(run) + messages_text(run);
  text += concat("predicted step: ", with_thousands(printed("%.1f", run.time.total() * 1e3)),
                 " ms, ", with_thousands(printed("%.0f", run.tokens_per_s)), " tokens/s (");
  bool first = true;
  for (const auto& [name, seconds] : times_of(run.time)) {
    if (seconds <= 0) continue;
    text += concat(first ? "" : ", ", name, " ", with_thousands(printed("%.1f", seconds * 1e3)));
    first = false;
  }
  return text + ")\n";
}

std::string plan_json(const Prepared& model, const RunPlan& run, const PlannedHosts& hosts) {
  JsonWriter json(2);
  json.begin_object()
      .field("model", model.model.name)
      .field("strategy", run.options.parallel.strategy)
      .field("ranks", hosts.ranks)
      .field("card", hosts.card.name)
      .field("card_bytes", hosts.card.memory_bytes)
      .field("fits", run.fits(hosts.card));
  json.key("stages").begin_array();
  for (size_t i = 0; i < run.stages.size(); ++i) {
    const MemoryPlan& stage = run.stages[i];
    json.begin_object();
    if (!run.recomputation.empty()) {
      const StageRecomputation& chosen = run.recomputation[i];
      json.field("recomputed_blocks", std::ssize(chosen.blocks))
          .field("recomputable_blocks", chosen.able)
          .field("activation_limit_bytes", chosen.allowed);
    }
    for (const auto& [name, bytes] : device_categories(stage)) {
      json.field(concat(name, "_bytes"), bytes);
    }
    for (const auto& [name, bytes] : other_categories(run, stage)) {
      json.field(concat(name, "_bytes"), bytes);
    }
    json.field("allocated_bytes", stage.tensors())
        .field("device_bytes", stage.device_bytes())
        .field("host_bytes", stage.state.host_bytes)
        .end_object();
  }
  json.end_array().key("messages").begin_array();
  for (const Message& message : run.messages) {
    json.begin_object()
        .field("what", message.traffic.what)
        .field("operation", message.traffic.operation)
        .field("ranks", message.traffic.ranks)
        .field("bytes", message.traffic.bytes)
        .field("between_hosts", message.between_hosts)
        .field("bytes_per_second", message.bytes_per_s)
        .field("time_s", message.seconds())
        .end_object();
  }
  json.end_array().key("step").begin_object();
  for (const auto& [name, seconds] : times_of(run.time)) {
    json.field(concat(name == std::string("exposed communication") ? "comm_exposed" : name, "_s"),
               seconds);
  }
  json.field("recomputed_operations_ratio", run.more_operations)
      .field("step_time_s", run.time.total())
      .field("tokens_per_second", run.tokens_per_s)
      .end_object();
  return json.end_object().text() + "\n";
}

}  // namespace tessera::programs
