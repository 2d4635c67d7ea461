// SPDX-License-Identifier: MIT
#include "lib/tools/plan/tables.h"

#include <cstdio>
#include <utility>
#include <vector>

#include "lib/core/number_text.h"
#include "lib/core/units.h"
#include "lib/run/recomputation.h"
#include "tessera/core/error.h"
#include "tessera/core/json.h"

namespace tessera::programs {
namespace {

std::string mebibytes(double bytes) { return printed("%.1f", bytes / kMiB); }

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

// Of tensors while the rank does this, and what is apart from them; zeros: it never does.
std::vector<Category> other_categories(const RunPlan& run, const MemoryPlan& memory) {
  const auto tensors_in = [&](const Activations& pass) {
    return pass.total() > 0 ? memory.state.device_bytes() + pass.total() + memory.workspace : 0;
  };
  return {{"tensors in evaluation", tensors_in(memory.evaluation)},
          {"tensors in generation", tensors_in(memory.generation)},
          {"key/value cache of it", memory.generation.cache},
          {"copy of the state", run.saves ? memory.state.saved_bytes : 0}};
}

// One line a category, one column a stage.
std::string memory_text(const RunPlan& run, const Card& card) {
  std::string text = "memory of one rank, MiB";
  if (run.stages.size() > 1) {
    text = "memory of one rank of each stage, MiB";
  }
  text += "\n";
  const auto line = [&](const char* name, const auto& value_of) {
    text += printed("  %-26s", name);
    for (const MemoryPlan& stage : run.stages) text += printed("%12s", value_of(stage).c_str());
    text += "\n";
  };
  const auto names = device_categories(run.stages.front());
  for (size_t i = 0; i < names.size(); ++i) {
    line(names[i].first,
         [&](const MemoryPlan& stage) { return mebibytes(device_categories(stage)[i].second); });
  }
  line("tensors", [](const MemoryPlan& stage) { return mebibytes(stage.tensors()); });
  const auto others = other_categories(run, run.stages.front());
  for (size_t i = 0; i < others.size(); ++i) {
    if (others[i].second == 0) continue;
    line(others[i].first, [&](const MemoryPlan& stage) {
      return mebibytes(other_categories(run, stage)[i].second);
    });
  }
  line("on the device", [](const MemoryPlan& stage) { return mebibytes(stage.device_bytes()); });
  line("on the host", [](const MemoryPlan& stage) { return mebibytes(stage.state.host_bytes); });
  const double needed = run.largest(card).needed(card);
  return text + printed("  %s of %s MiB (%.0f %%) of one %s\n", mebibytes(needed).c_str(),
                        mebibytes(card.memory_bytes).c_str(), 100 * needed / card.memory_bytes,
                        card.device.empty() ? "rank's share of this host" : card.name.c_str());
}

std::string recomputation_text(const RunPlan& run) {
  if (run.recomputation.empty()) return "";
  return printed(
      "run again in backward: %s, %.1f %% more operations; activations may take %s MiB\n",
      counts_text(run.recomputation).c_str(), 100 * run.more_operations,
      mebibytes(least_allowed(run.recomputation)).c_str());
}

std::string messages_text(const RunPlan& run) {
  if (run.messages.empty()) return "";
  std::string text = printed("%-24s %-28s %6s %12s %8s %10s\n", "sent by a rank in a step", "as",
                             "ranks", "MiB", "GB/s", "ms");
  for (const Message& message : run.messages) {
    const Traffic& traffic = message.traffic;
    text += printed("  %-22s %-28s %6d %12s %8.1f %10.3f%s\n", traffic.what.c_str(),
                    traffic.operation.c_str(), traffic.ranks, mebibytes(traffic.bytes).c_str(),
                    message.bytes_per_s / 1e9, message.seconds() * 1e3,
                    message.between_hosts ? "  between hosts" : "");
  }
  return text;
}

std::vector<Category> times_of(const StepTime& time) {
  return {{"compute", time.compute},
          {"bubble", time.bubble},
          {"exposed communication", time.exposed},
          {"optimizer", time.optimizer},
          {"offload", time.offload}};
}

}  // namespace

std::string plan_text(const Prepared& model, const RunPlan& run, const Place& place) {
  const TrainOptions& o = run.options;
  const ParameterCount count = parameter_count(model.model);
  const std::string trained =
      count.trained == count.all ? "" : concat(count.trained, " of them trainable, ");
  std::string text = concat(
      model.model.name, ": ", count.all, " parameters, ", trained, o.parallel.strategy, " on ",
      place.ranks, " rank(s) (pipeline ", run.mesh.pipeline, " x data ", run.mesh.data,
      " x tensor ", run.mesh.tensor, "), ", name_of(o.parallel.precision.parameter),
      ", micro-batch ", o.training.per_device_train_batch_size, " x ", o.data.max_seq_length,
      ", global batch ", run.global_batch, ", ", place.card.name, "\n");
  text += memory_text(run, place.card) + recomputation_text(run) + messages_text(run);
  text +=
      printed("predicted step: %.1f ms, %.0f tokens/s (", run.time.total() * 1e3, run.tokens_per_s);
  bool first = true;
  for (const auto& [name, seconds] : times_of(run.time)) {
    if (seconds <= 0) continue;
    text += printed("%s%s %.1f", first ? "" : ", ", name, seconds * 1e3);
    first = false;
  }
  return text + ")\n";
}

std::string plan_json(const Prepared& model, const RunPlan& run, const Place& place) {
  JsonWriter json(2);
  json.begin_object()
      .field("model", model.model.name)
      .field("strategy", run.options.parallel.strategy)
      .field("ranks", place.ranks)
      .field("card", place.card.name)
      .field("card_bytes", place.card.memory_bytes)
      .field("fits", run.fits(place.card));
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
