// SPDX-License-Identifier: MIT
#include "lib/run/optimizer.h"

#include <algorithm>

#include "lib/settings/lists.h"
#include "lib/settings/require.h"
#include "tessera/optim/adagrad.h"
#include "tessera/optim/adamw.h"
#include "tessera/optim/lion.h"
#include "tessera/optim/muon.h"
#include "tessera/optim/sgd.h"

namespace tessera {

template <>
inline constexpr auto kNames<MuonLrAdjustment> =
    std::to_array<Named<MuonLrAdjustment>>({{"original", MuonLrAdjustment::kOriginal},
                                            {"match_rms_adamw", MuonLrAdjustment::kMatchRmsAdamW}});

}  // namespace tessera

namespace tessera::programs {
namespace {

using Arguments = std::vector<std::pair<std::string, FieldRef>>;

// Parses "momentum=0.9,nesterov=true" into the optimizer's arguments.
void read_arguments(const TrainingOptions& options, const Arguments& known) {
  const std::string optimizer = name_of(options.optim);
  std::string names;
  for (const auto& [name, field] : known) names += (names.empty() ? "" : ", ") + name;
  for (const std::string& item : items_of(options.optim_args)) {
    const size_t equals = item.find('=');
    const std::string name = item.substr(0, equals);
    const auto found = std::ranges::find(known, name, &Arguments::value_type::first);
    require(found != known.end() && equals != std::string::npos, "--optim_args: \"", item,
            "\" is no argument of ", optimizer, "; it takes ",
            names.empty() ? "none" : names + ", each as name=value");
    const std::string text = item.substr(equals + 1);
    require(set_text(found->second, text), "--optim_args: \"", text, "\" is no value of ", name);
  }
}

AdamWConfig adamw_config(const TrainingOptions& o) {
  return {.beta1 = o.adam_beta1,
          .beta2 = o.adam_beta2,
          .epsilon = o.adam_epsilon,
          .weight_decay = o.weight_decay,
          .adam_w_mode = o.optim != Optim::kAdam,
          .moments = o.moments()};
}

// Muon for matrices: its own rate, with the schedule of --learning_rate.
OptimizerFactory muon_of(const TrainingOptions& o) {
  MuonConfig config{.weight_decay = o.weight_decay};
  double rate = o.learning_rate;
  read_arguments(o, {{"lr", &rate},
                     {"momentum", &config.momentum},
                     {"nesterov", &config.nesterov},
                     {"ns_steps", &config.ns_steps},
                     {"eps", &config.epsilon},
                     {"adjust_lr_fn", field_of(config.adjust_lr)}});
  if (rate != o.learning_rate) {
    require(o.learning_rate > 0 && rate > 0, "--optim_args: lr ", rate, " beside --learning_rate ",
            o.learning_rate, "; both must be positive where they differ");
    config.relative_rate = rate / o.learning_rate;
  }
  return make_muon(config, make_adamw(adamw_config(o)));
}

}  // namespace

OptimizerFactory optimizer_of(const TrainingOptions& o) {
  switch (o.optim) {
    case Optim::kSgd: {
      SgdConfig config{.weight_decay = o.weight_decay};
      read_arguments(o, {{"momentum", &config.momentum}, {"nesterov", &config.nesterov}});
      return make_sgd(config);
    }
    case Optim::kAdagrad: {
      AdagradConfig config{.weight_decay = o.weight_decay};
      read_arguments(o, {{"lr_decay", &config.lr_decay}, {"eps", &config.epsilon}});
      return make_adagrad(config);
    }
    case Optim::kLion:
      read_arguments(o, {});
      return make_lion(
          {.beta1 = o.adam_beta1, .beta2 = o.adam_beta2, .weight_decay = o.weight_decay});
    case Optim::kMuon:
      return muon_of(o);
    case Optim::kAdam:
    case Optim::kAdamW:
    case Optim::kAdamW8Bit:
      break;
  }
  AdamWConfig config = adamw_config(o);
  const bool has_small = config.moments == MomentsDtype::kInt8;
  read_arguments(o, has_small ? Arguments{{"min_8bit_size", &config.min_8bit_size}} : Arguments{});
  return make_adamw(config);
}

}  // namespace tessera::programs
