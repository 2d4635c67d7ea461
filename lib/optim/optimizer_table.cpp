// SPDX-License-Identifier: MIT
#include "lib/optim/optimizer_table.h"

#include <algorithm>

#include "tessera/core/error.h"
#include "tessera/optim/adagrad.h"
#include "tessera/optim/lion.h"
#include "tessera/optim/muon.h"
#include "tessera/optim/sgd.h"

namespace tessera {

template <>
inline constexpr auto kNames<MuonLrAdjustment> =
    std::to_array<Named<MuonLrAdjustment>>({{"original", MuonLrAdjustment::kOriginal},
                                            {"match_rms_adamw", MuonLrAdjustment::kMatchRmsAdamW}});

namespace {

using Row = OptimizerRow;
using Settings = OptimizerSettings;

AdamWConfig adamw_config(const Settings& s, bool decoupled = true) {
  return {.beta1 = s.beta1,
          .beta2 = s.beta2,
          .epsilon = s.epsilon,
          .weight_decay = s.weight_decay,
          .adam_w_mode = decoupled,
          .moments = s.moments};
}

template <bool kDecoupled>
OptimizerFactory adamw(const Row& row, const Settings& s) {
  AdamWConfig config = adamw_config(s, kDecoupled);
  if (config.moments == MomentsDtype::kInt8) {
    row.read_arguments(s, {{"min_8bit_size", &config.min_8bit_size}});
  } else {
    row.read_arguments(s, {});
  }
  return make_adamw(config);
}

OptimizerFactory sgd(const Row& row, const Settings& s) {
  SgdConfig config{.weight_decay = s.weight_decay};
  row.read_arguments(s, {{"momentum", &config.momentum}, {"nesterov", &config.nesterov}});
  return make_sgd(config);
}

OptimizerFactory adagrad(const Row& row, const Settings& s) {
  AdagradConfig config{.weight_decay = s.weight_decay};
  row.read_arguments(s, {{"lr_decay", &config.lr_decay}, {"eps", &config.epsilon}});
  return make_adagrad(config);
}

OptimizerFactory lion(const Row& row, const Settings& s) {
  row.read_arguments(s, {});
  return make_lion({.beta1 = s.beta1, .beta2 = s.beta2, .weight_decay = s.weight_decay});
}

// The rate of matrices is given as it is, and follows the schedule of --learning_rate.
OptimizerFactory muon_and_adamw(const Row& row, const Settings& s) {
  MuonConfig config{.weight_decay = s.weight_decay};
  double rate = s.learning_rate;
  row.read_arguments(s, {{"lr", &rate},
                         {"momentum", &config.momentum},
                         {"nesterov", &config.nesterov},
                         {"ns_steps", &config.ns_steps},
                         {"eps", &config.epsilon},
                         {"adjust_lr_fn", field_of(config.adjust_lr)}});
  if (rate != s.learning_rate) {
    check(s.learning_rate > 0 && rate > 0, ErrorCode::kInvalidArgument, "--optim_args: lr ", rate,
          " beside --learning_rate ", s.learning_rate, "; both must be positive where they differ");
    config.relative_rate = rate / s.learning_rate;
  }
  return make_muon(config, make_adamw(adamw_config(s)));
}

}  // namespace

const std::vector<OptimizerRow>& optimizer_table() {
  static const std::vector<Row> rows = {
      {.name = "adamw_torch",
       .aliases = {"adamw_torch_fused", "adamw_hf", "adamw_apex_fused", "adamw", "AdamW"},
       .betas = true,
       .epsilon = true,
       .moments = MomentsDtype::kFloat32,
       .deepspeed = {.types = {"Adam", "AdamW"}, .parameters = {"betas", "eps"}},
       .elsewhere = {{"optimizer", "adam"}, {"optimizer.name", "AdamW"}},
       .factory = adamw<true>},
      {.name = "adamw_8bit",
       .aliases = {"adamw_bnb_8bit", "adamw_torch_8bit"},
       .help = "keeps moments in 8 bits",
       .arguments = "min_8bit_size=4096",
       .betas = true,
       .epsilon = true,
       .moments = MomentsDtype::kInt8,
       .fixed_moments = true,
       .factory = adamw<true>},
      {.name = "adam",
       .help = "adds the decay to the gradient",
       .betas = true,
       .epsilon = true,
       .moments = MomentsDtype::kFloat32,
       .factory = adamw<false>},
      {.name = "sgd",
       .arguments = "momentum=0.9,nesterov=true",
       .deepspeed = {.types = {"SGD"}, .parameters = {"momentum", "nesterov"}},
       .elsewhere = {{"optimizer", "sgd"}},
       .factory = sgd},
      {.name = "adagrad",
       .arguments = "lr_decay=0.1,eps=1e-10",
       .deepspeed = {.types = {"Adagrad"}, .parameters = {"eps"}},
       .factory = adagrad},
      {.name = "lion_32bit",
       .aliases = {"lion"},
       .help = "reads AdamW's betas",
       .betas = true,
       .deepspeed = {.types = {"Lion"},
                     .parameters = {"betas"},
                     .defaults = {{"betas", "adam_beta2", "0.99"}}},
       .factory = lion},
      {.name = "muon",
       .help = "leaves what is no hidden matrix to AdamW",
       .arguments = "lr=0.02 (its own; --learning_rate is AdamW's), momentum, nesterov, ns_steps, "
                    "eps, adjust_lr_fn=match_rms_adamw",
       .betas = true,
       .epsilon = true,
       .moments = MomentsDtype::kFloat32,
       .deepspeed = {.types = {"Muon"},
                     .parameters = {"betas", "eps", "momentum", "muon_lr", "adam_lr"},
                     .defaults = {{"eps", "adam_epsilon", "1e-10"},
                                  {"betas", "adam_beta2", "0.95"}}},
       .elsewhere = {{"optimizer", "muon"}},
       .factory = muon_and_adamw},
  };
  return rows;
}

void OptimizerRow::read_arguments(
    const OptimizerSettings& settings,
    const std::vector<std::pair<std::string, FieldRef>>& known) const {
  std::string names;
  for (const auto& [known_name, field] : known) names += (names.empty() ? "" : ", ") + known_name;
  for (const std::string& item : settings.arguments) {
    const size_t equals = item.find('=');
    const std::string key = item.substr(0, equals);
    const auto found = std::ranges::find(known, key, [](const auto& one) { return one.first; });
    check(found != known.end() && equals != std::string::npos, ErrorCode::kInvalidArgument,
          "--optim_args: \"", item, "\" is no argument of ", name, "; it takes ",
          names.empty() ? "none" : names + ", each as name=value");
    const std::string text = item.substr(equals + 1);
    check(set_text(found->second, text), ErrorCode::kInvalidArgument, "--optim_args: \"", text,
          "\" is no value of ", key);
  }
}

const OptimizerRow* find_optimizer(const std::string& name) {
  for (const OptimizerRow& row : optimizer_table()) {
    const auto is_name = [&](const char* other) { return name == other; };
    if (is_name(row.name) || std::ranges::any_of(row.aliases, is_name)) return &row;
  }
  return nullptr;
}

std::vector<std::string> optimizer_names(bool (*holds)(const OptimizerRow&)) {
  std::vector<std::string> names;
  for (const OptimizerRow& row : optimizer_table()) {
    if (holds == nullptr || holds(row)) names.emplace_back(row.name);
  }
  return names;
}

FieldRef field_of(const OptimizerRow*& variable) {
  const auto size = optimizer_table().size();
  return Choice{
      &variable, size, [](size_t i) { return optimizer_table()[i].name; },
      [](const void* at) {
        const auto& rows = optimizer_table();
        const OptimizerRow* row = *static_cast<const OptimizerRow* const*>(at);
        return row == nullptr ? rows.size() : static_cast<size_t>(row - rows.data());
      },
      [](void* at, size_t i) { *static_cast<const OptimizerRow**>(at) = &optimizer_table()[i]; }};
}

}  // namespace tessera
