// SPDX-License-Identifier: MIT
// Checks of a DeepSpeed file beyond its values' types.
#include <algorithm>
#include <cctype>

#include "lib/core/joined.h"
#include "lib/core/nearest.h"
#include "lib/interop/deepspeed_file.h"
#include "lib/interop/deepspeed_keys.h"
#include "tessera/core/error.h"

namespace tessera::programs {
namespace {

using Value = DeepSpeedFile::Value;

constexpr double kMostRows = 0x7FFFFFFF;  // batch size limit: products with ranks fit 64 bits

bool is_true(const Value* value) {
  return value != nullptr && value->json.is_bool() && value->json.as_bool();
}
bool is_number(const Value* value) { return value != nullptr && value->json.is_number(); }

bool takes(const OptimizerRow& row, const std::string& parameter) {
  return std::ranges::count(row.deepspeed.parameters, parameter) > 0;
}

// Types of optimizers that have this parameter; null: all types.
std::vector<std::string> types_with(const char* parameter) {
  std::vector<std::string> types;
  for (const OptimizerRow& row : optimizer_table()) {
    if (parameter != nullptr && !takes(row, parameter)) continue;
    types.insert(types.end(), row.deepspeed.types.begin(), row.deepspeed.types.end());
  }
  return types;
}

class Checks {
 public:
  explicit Checks(DeepSpeedFile& file) : file_(file) {}

  void run() {
    precision();
    zero();
    batch();
    optimizer();
    scheduler();
  }

 private:
  template <typename... Parts>
  void require(bool condition, const Value* at, const Parts&... parts) {
    if (!condition) file_.add_finding({at->line, concat(parts...), at->key, ""});
  }

  void precision() {
    const Value *fp16 = file_.find("fp16.enabled"), *bf16 = file_.find("bf16.enabled");
    if (is_true(fp16) && is_true(bf16)) {
      const Value* second = fp16->line > bf16->line ? fp16 : bf16;
      require(false, second, "fp16 (line ", fp16->line, ") and bf16 (line ", bf16->line,
              ") are both enabled; set \"enabled\" of one to false");
    }
    const Value* power = file_.find("fp16.initial_scale_power");
    require(power == nullptr || power->count() <= 63, power,
            "fp16.initial_scale_power: ", power ? power->json.dump() : "",
            " is too large; scales end at 2^63");
    const Value* window = file_.find("fp16.loss_scale_window");
    require(window == nullptr || window->count() > 0, window,
            "fp16.loss_scale_window is 0; it must be at least 1");
    for (const char* name : {"fp16.loss_scale", "fp16.min_loss_scale", "gradient_clipping"}) {
      const Value* value = file_.find(name);
      require(!is_number(value) || value->number() >= 0, value, name, " is ",
              value ? value->json.dump() : "", "; it must not be negative");
    }
  }

  void zero() {
    const Value* stage = file_.find("zero_optimization.stage");
    const int64_t number = file_.stage();
    require(number <= 3, stage, "zero_optimization.stage is ", number,
            "; stages are 0, 1, 2 and 3");
    device("zero_optimization.offload_optimizer.device", number >= 1,
           "needs stage 1, 2 or 3; set zero_optimization.stage");
    device("zero_optimization.offload_param.device", number == 3,
           "needs stage 3; set zero_optimization.stage to 3 or leave offload_param out");
  }

  void device(const std::string& key, bool legal, const char* remedy) {
    const Value* device = file_.find(key);
    if (device == nullptr || device->is_auto()) return;
    const std::string name = key.substr(0, key.rfind('.'));
    require(device->text() != "nvme", device, name,
            ": nvme is not available here: state is offloaded to host memory, write \"cpu\"");
    require(legal || device->text() == "none", device, name, " under stage ", file_.stage(), " ",
            remedy);
  }

  // Checks that do not depend on the number of ranks.
  void batch() {
    const char* names[] = {"train_batch_size", "train_micro_batch_size_per_gpu",
                           "gradient_accumulation_steps"};
    double product = 1;
    bool sound = true;
    for (const char* name : names) {
      const Value* value = file_.find(name);
      if (!is_number(value)) continue;
      const bool good = value->number() >= 1 && value->number() <= kMostRows;
      require(good, value, name, " is ", value->json.dump(), "; it must be ",
              value->number() < 1 ? "at least 1" : "below 2^31");
      sound = sound && good;
      if (name != names[0]) product *= value->number();
    }
    require(!sound || product <= kMostRows, file_.find(names[2]), names[1], " * ", names[2],
            " make 2^31 rows or more");
    const Value* all = file_.find(names[0]);
    if (!sound || product > kMostRows || !is_number(all)) return;
    if (all->count() % static_cast<int64_t>(product) == 0) return;
    std::string parts;
    for (const char* name : {names[1], names[2]}) {
      if (is_number(file_.find(name))) parts += (parts.empty() ? "" : " * ") + file_.quoted(name);
    }
    require(false, all, "train_batch_size ", all->json.dump(), " is no multiple of ", parts,
            "; change one of them or write \"auto\"");
  }

  // The type of a section; null: the section or its type is missing.
  const Value* type_of(const std::string& name, const char* example) {
    const Value* section = file_.find(name);
    const Value* type = file_.find(name + ".type");
    require(section == nullptr || type != nullptr, section, name, " has no \"type\"; write \"",
            example, "\"");
    return type;
  }

  void optimizer() {
    const Value* type = type_of("optimizer", "AdamW");
    if (type == nullptr) return;
    const OptimizerRow* optim = deepspeed_optimizer(type->text());
    require(optim != nullptr, type, "optimizer.type \"", type->text(),
            "\" is not available here; types are ", listed(types_with(nullptr)));
    for (const char* key : {"betas", "eps", "momentum", "nesterov", "muon_lr", "adam_lr"}) {
      const Value* value = file_.find(concat("optimizer.params.", key));
      const std::vector<std::string> types = types_with(key);
      require(value == nullptr || (optim != nullptr && takes(*optim, key)), value, type->text(),
              " takes no ", key, "; ", listed(types), types.size() == 1 ? " does" : " do");
    }
    const Value* corrected = file_.find("optimizer.params.bias_correction");
    require(corrected == nullptr || is_true(corrected), corrected,
            "optimizer.params.bias_correction false is not available here; leave it out");
    const Value* betas = file_.find("optimizer.params.betas");
    if (betas == nullptr || betas->is_auto()) return;
    for (const Json& beta : betas->json.items()) {
      require(beta.as_double() >= 0 && beta.as_double() < 1, betas,
              "optimizer.params.betas: ", beta.dump(), " is not in [0, 1)");
    }
  }

  void scheduler() {
    const Value* type = type_of("scheduler", "WarmupDecayLR");
    if (type == nullptr) return;
    const std::string name = type->text();
    const std::vector<std::string>& known = deepspeed_schedulers();
    if (std::ranges::find(known, name) == known.end()) {
      return file_.add_finding(
          {.line = type->line,
           .text =
               concat("scheduler.type \"", name,
                      "\" is not available here: WarmupLR, WarmupDecayLR and WarmupCosineLR are",
                      nearest_hint(name, known)),
           .key = type->key,
           .nearest = nearest_name(name, known)});
    }
    const bool cosine = name == "WarmupCosineLR", plain = name == "WarmupLR";
    const std::string params = "scheduler.params.";
    for (const char* key : {"warmup_min_ratio", "cos_min_ratio"}) {
      const Value* value = file_.find(params + key);
      require(value == nullptr || cosine, value, name, " takes no ", key, "; WarmupCosineLR does");
    }
    for (const char* key : {"warmup_min_lr", "warmup_max_lr"}) {
      const Value* value = file_.find(params + key);
      require(value == nullptr || !cosine, value, name, " takes no ", key,
              "; it multiplies optimizer.params.lr");
    }
    const Value* total = file_.find(params + "total_num_steps");
    require(total == nullptr || !plain, total,
            "WarmupLR takes no total_num_steps; WarmupDecayLR "
            "and WarmupCosineLR do");
    require(plain || total != nullptr, type, name,
            " needs total_num_steps; write \"auto\" for the steps of the run");
    require(!is_number(total) || total->count() > 0, total,
            "scheduler.params.total_num_steps is 0; write \"auto\" for the steps of the run");
  }

  DeepSpeedFile& file_;
};

}  // namespace

void check_deepspeed(DeepSpeedFile& file) { Checks(file).run(); }

}  // namespace tessera::programs
