// SPDX-License-Identifier: MIT
#pragma once
// PEFT's adapters beside exported programs, and the numbers of training them in PEFT
// (tests/python/program_lora.py).
#include <ATen/ATen.h>

#include <cmath>
#include <memory>
#include <string>

#include "tessera/checkpoint/adapter.h"
#include "tessera/optim/adamw.h"
#include "tessera/optim/sgd.h"
#include "tests/parity/parity.h"
#include "tests/support/exported_program.hpp"

namespace tessera::testing {

// A directory with a program, reference.json and a folder "adapter".
struct ExportedAdapter {
  explicit ExportedAdapter(const std::string& directory, const ProgramOptions& options = {})
      : weights(directory),
        adapter(std::make_shared<const AdapterDirectory>(directory + "/adapter")),
        model(add_lora(from_program(directory, options), adapter->config().rule, adapter)),
        expected(Json::parse_file(directory + "/adapter/expected.json")),
        batches(Json::parse_file(directory + "/reference.json").at("batches")) {
    adapter->check_fits(model);
  }

  HuggingFaceDirectory weights;
  std::shared_ptr<const AdapterDirectory> adapter;
  ModelSpec model;
  Json expected, batches;
};

// PEFT's training: AdamW at a constant rate, without clipping.
inline ParityWork peft_work(const ExportedAdapter& exported) {
  const Json training = exported.expected.at("training");
  ParityWork work{.model = exported.model};
  for (size_t i = 0; i < exported.expected.at("loss").size(); ++i) {
    work.global_batches.push_back(
        test::causal_batch(exported.batches.at(i % exported.batches.size())));
  }
  work.source = &exported.weights;
  work.optimizer = make_adamw({.epsilon = training.at("epsilon").as_double(),
                               .weight_decay = training.at("weight_decay").as_double()});
  work.trainer.max_grad_norm = 0;
  work.trainer.schedule = {.kind = LrScheduleKind::kConstant,
                           .peak = training.at("learning_rate").as_double()};
  return work;
}

// A few steps of SGD, which makes no steps of rounding noise: for layouts beside each other.
inline ParityWork adapter_work(const ExportedAdapter& exported, size_t steps = 3) {
  ParityWork work = peft_work(exported);
  work.global_batches.resize(steps);
  work.optimizer = make_sgd({});
  work.trainer.schedule.peak = 5e-2;
  return work;
}

// "block.parameter" of a record -> the stored name.
inline std::string stored_name(const ModelSpec& model, const std::string& key) {
  const BlockBuilder* owner = nullptr;
  for (const BlockBuilder& block : model.blocks) {
    const bool fits = key.starts_with(block.name + ".");
    if (fits && (owner == nullptr || block.name.size() > owner->name.size())) owner = &block;
  }
  return model.stored_name(owner->name, key.substr(owner->name.size() + 1));
}

// The largest relative difference of the losses.
inline double difference_of_losses(const RankRecord& record, const Json& expected) {
  double worst = record.steps.size() == expected.size() ? 0 : 1;
  for (size_t i = 0; i < record.steps.size() && i < expected.size(); ++i) {
    const double loss = expected.at(i).as_double();
    worst = std::max(worst, std::abs(record.steps[i].loss - loss) / std::abs(loss));
  }
  return worst;
}

// "", or the first trained tensor that is not PEFT's, or the first other one that has changed.
inline std::string difference_of_tensors(const RankRecord& record,
                                         const ExportedAdapter& exported) {
  const Json final = exported.expected.at("final");
  size_t trained = 0;
  for (const auto& [key, value] : record.final) {
    const std::string name = stored_name(exported.model, key);
    const auto numbers = final.find(name);
    if (!numbers) {
      if (!value.equal(record.initial.at(key))) return key + " is frozen, but has changed";
      continue;
    }
    ++trained;
    const at::Tensor before = exported.adapter->read(name, value.sizes()).to(at::kDouble).flatten();
    const at::Tensor change = value.to(at::kDouble).flatten() - before;
    const double norm = value.to(at::kDouble).norm().item<double>(),
                 wanted = numbers->at("norm").as_double(), size = numbers->at("change").as_double();
    if (std::abs(norm - wanted) > 1e-5 * wanted) {
      return concat(name, " has the norm ", norm, ", PEFT's ", wanted);
    }
    const auto& [length, probe] = test::norm_and_probe(change);
    if (std::abs(length - size) > 1e-4 * size) {
      return concat("the change of ", name, " is ", length, ", PEFT's ", size);
    }
    if (std::abs(probe - numbers->at("probe").as_double()) > 1e-3 * size) {
      return concat("the probe of ", name, " is ", probe, ", PEFT's ",
                    numbers->at("probe").as_double());
    }
  }
  return trained == final.size() ? ""
                                 : concat(trained, " tensors are trained, in PEFT ", final.size());
}

}  // namespace tessera::testing
