// SPDX-License-Identifier: MIT
#include "lib/core/joined.h"
#include "lib/settings/table.h"
#include "tessera/core/error.h"

namespace tessera::settings::rows {
namespace {

using T = TrainingOptions;
using enum Changes;
using enum NameOf;

// "sgd this, muon that": a text of those that have one.
std::string of_optimizers(const std::string& before, const char* OptimizerRow::*text) {
  std::vector<std::string> texts;
  for (const OptimizerRow& row : optimizer_table()) {
    if (*(row.*text) != '\0') texts.push_back(concat(before, row.name, " ", row.*text));
  }
  return joined(texts);
}

}  // namespace

std::vector<Setting> training() {
  // clang-format off
  return {
      {"per_device_train_batch_size", of<&T::per_device_train_batch_size>, kCost,
       "rows of a micro-batch",
       {.least = 1, .most = kMuch, .brief = "rows of a micro-batch",
        .name_of = kTrainingArguments}},
      {"per_device_eval_batch_size", of<&T::per_device_eval_batch_size>, kCost,
       "rows in evaluation",
       {.least = 1, .most = kMuch, .tag = "ebs", .name_of = kTrainingArguments}},
      {"gradient_accumulation_steps", of<&T::gradient_accumulation_steps>, kCost,
       "micro-batches a step",
       {.least = 1, .most = 0x1p20, .tag = "ga", .brief = "micro-batches a step",
        .name_of = kTrainingArguments}},
      {"num_train_epochs", of<&T::num_train_epochs>, kNumbers, "passes over the data",
       {.least = 0, .most = 1e9, .work = "", .brief = "passes over the data",
        .name_of = kTrainingArguments}},
      {"max_steps", of<&T::max_steps>, kNumbers,
       "optimizer steps; wins over --num_train_epochs when > 0",
       {.least = -1, .most = kMuch, .work = "", .name_of = kTrainingArguments}},
      {"learning_rate", of<&T::learning_rate>, kNumbers, "peak learning rate",
       {.least = 0, .most = kLargestReal, .work = "learning rate", .brief = "peak learning rate",
        .name_of = kTrainingArguments}},
      {"lr_scheduler_type", of<&T::lr_scheduler_type>, kNumbers, "learning rate over time",
       {.work = "schedule of the learning rate", .name_of = kTrainingArguments}},
      {"lr_scheduler_kwargs", of<&T::lr_scheduler_kwargs>, kNumbers,
       "the schedule's options as JSON: {\"num_cycles\": 2}",
       {.name_of = kTrainingArguments}},
      {"warmup_steps", of<&T::warmup_steps>, kNumbers,
       "steps in which the learning rate rises from 0; below 1: that part of all steps",
       {.least = 0, .most = kMuch, .work = "warm-up", .name_of = kTrainingArguments}},
      {"optim", of<&T::optim>, kNumbers,
       "optimizer; " + of_optimizers("", &OptimizerRow::help),
       {.tag = "", .name_of = kTrainingArguments}, {.recorded = true}},
      {"optim_args", of<&T::optim_args>, kNumbers,
       of_optimizers("of ", &OptimizerRow::arguments),
       {.name_of = kTrainingArguments}},
      {"moments_dtype", of<&T::moments_dtype>, kNumbers,
       "fp32, bf16 or int8: what adamw_torch and adam, and AdamW beside muon, keep their moments "
       "in; int8: blocks of 256; embeddings, heads and parameters below 4,096 elements in fp32",
       {.tag = "mom"}},
      {"weight_decay", of<&T::weight_decay>, kNumbers, "skips biases and norm weights",
       {.least = 0, .most = kLargestReal, .work = "weight decay", .name_of = kTrainingArguments}},
      {"no_decay_names", of<&T::no_decay_names>, kNumbers,
       "parts of names, as bias,ln_f: these do not decay, all others do; none: all decay"},
      {"lr_groups", of<&T::lr_groups>, kNumbers,
       "learning rates of their own, as lm_head=10,h.0=0.5: part of the name, factor"},
      {"adam_beta1", of<&T::adam_beta1>, kNumbers,
       "AdamW's first moment",
       {.least = 0, .below = 1, .work = "Adam's beta 1", .name_of = kTrainingArguments}},
      {"adam_beta2", of<&T::adam_beta2>, kNumbers,
       "AdamW's second moment",
       {.least = 0, .below = 1, .work = "Adam's beta 2", .name_of = kTrainingArguments}},
      {"adam_epsilon", of<&T::adam_epsilon>, kNumbers, "AdamW's epsilon",
       {.least = 0, .most = kLargestReal, .work = "Adam's epsilon", .name_of = kTrainingArguments}},
      {"max_grad_norm", of<&T::max_grad_norm>, kNumbers, "clip to this global norm; 0: no clipping",
       {.least = 0, .most = kLargestReal, .work = "clipping", .name_of = kTrainingArguments}},
      {"router_aux_loss_coef", of<&T::router_aux_loss_coef>, kNumbers,
       "factor of the balance loss of experts; -1: config.json's if output_router_logits is true, "
       "else 0",
       {.least = -1, .most = 1e6, .work = "balance loss of experts"}, {.recorded = true, .own = false}},
      {"router_z_loss_coef", of<&T::router_z_loss_coef>, kNumbers,
       "factor of the mean square of the router logits' log-sum-exp (z-loss)",
       {.least = 0, .most = 1e6, .work = "z-loss of routers"}, {.recorded = true, .own = false}},
      {"count_experts", of<&T::count_experts>, kCost,
       "metrics have the tokens of every expert, and starving ones are warned of",
       {.tag = "uncounted"}, {.own = false}},
      {"seed", of<&T::seed>, kNumbers, "of the weights and the order of the data",
       {.least = 0, .below = 0x1p63, .work = "", .name_of = kTrainingArguments}},
  };
  // clang-format on
}

}  // namespace tessera::settings::rows
