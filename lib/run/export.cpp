// SPDX-License-Identifier: MIT
#include "lib/run/export.h"

#include <ATen/ATen.h>

#include <memory>
#include <set>
#include <utility>

#include "lib/comm/operation_scope.h"
#include "lib/core/hash.h"
#include "lib/run/run_checkpoints.h"
#include "lib/settings/layout.h"
#include "tessera/checkpoint/huggingface.h"
#include "tessera/core/error.h"
#include "tessera/program/stored_names.h"

namespace tessera::programs {

namespace {

HuggingFaceWriterOptions writer_options(const RunTask& task) {
  HuggingFaceWriterOptions how{.dtype = task.options().parallel.precision.parameter};
  if (task.adapter() != nullptr) how = adapter_writer_options(task.model());
  how.replaces = continues_in_place(task.options());
  return how;
}

// Checks that exactly the names that PEFT expects were written.
void check_names(const ModelSpec& model, std::set<std::string> written) {
  for (const ParameterInfo& parameter : parameters_of(model)) {
    if (!parameter.trained) continue;
    const std::string name = model.stored_name(parameter.block, parameter.name);
    check(written.erase(name) == 1, ErrorCode::kInternal, "the adapter lacks ", name);
  }
  check(written.empty(), ErrorCode::kInternal, "the adapter holds ", *written.begin(),
        ", which is not trained");
}

}  // namespace

std::string write_final(const RunTask& task, Strategy& strategy, bool writes) {
  const InPhase phase("export");
  const AdapterConfig* const adapter = task.adapter();
  std::unique_ptr<HuggingFaceWriter> writer;
  if (writes && task.options().output.save_final) {
    writer = std::make_unique<HuggingFaceWriter>(task.options().output.output_dir + "/final",
                                                 writer_options(task));
  }
  std::set<std::string> written;
  const std::string names = task.stored_names();
  const Json listed = Json::parse(names.empty() ? "{}" : names, {}, "stored names");
  Xxh3Stream hash;
  const auto name_of = [&](const VisitedParameter& p) {
    return task.model().stored_name(p.block, p.name);
  };
  strategy.visit_parameters([&](const VisitedParameter& p) {
    if (!writes) return;
    const at::Tensor host = p.value.detach().to(at::kCPU, at::kFloat).contiguous();
    hash.update(host.const_data_ptr(), host.nbytes());
    if (!writer || (adapter && p.placement.frozen)) return;
    if (const auto stored = listed.find(p.block + "." + p.name)) {
      for (const auto& [name, part] : stored_tensors(*stored, host)) {
        writer->add(name, part);
        written.insert(name);
      }
      return;
    }
    writer->add(name_of(p), host);
    written.insert(name_of(p));
  });
  strategy.visit_buffers([&](const VisitedParameter& p) {
    if (writer && !adapter) writer->add_buffer(name_of(p), p.value);
  });
  if (writer) {
    if (adapter != nullptr) {
      check_names(task.model(), std::move(written));
      writer->add_text("adapter_config.json", adapter->to_json());
    }
    task.add_files(*writer);
    writer->commit();
  }
  return writes ? hash.digest128().hex() : "";
}

}  // namespace tessera::programs
