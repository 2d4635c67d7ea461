// SPDX-License-Identifier: MIT
#include "lib/run/export.h"

#include <ATen/ATen.h>

#include <memory>

#include "lib/comm/operation_scope.h"
#include "lib/core/hash.h"
#include "lib/settings/layout.h"
#include "tessera/checkpoint/huggingface.h"

namespace tessera::programs {

std::string write_final(const RunTask& task, Strategy& strategy, bool writes) {
  const InPhase phase("export");
  const at::ScalarType dtype = task.options().parallel.precision.parameter;
  const AdapterConfig* const adapter = task.adapter();
  std::unique_ptr<HuggingFaceWriter> writer;
  if (writes && task.options().output.save_final) {
    writer = std::make_unique<HuggingFaceWriter>(task.options().output.output_dir + "/final",
                                                 adapter != nullptr
                                                     ? adapter_writer_options(task.model())
                                                     : HuggingFaceWriterOptions{.dtype = dtype});
  }
  Xxh3Stream hash;
  const auto name_of = [&](const VisitedParameter& p) {
    return task.model().stored_name(p.block, p.name);
  };
  strategy.visit_parameters([&](const VisitedParameter& p) {
    if (!writes) return;
    const at::Tensor host = p.value.detach().to(at::kCPU, at::kFloat).contiguous();
    hash.update(host.const_data_ptr(), host.nbytes());
    if (writer && !(adapter && p.placement.frozen)) writer->add(name_of(p), host);
  });
  strategy.visit_buffers([&](const VisitedParameter& p) {
    if (writer && !adapter) writer->add_buffer(name_of(p), p.value);
  });
  if (writer) {
    if (adapter != nullptr) writer->add_text("adapter_config.json", adapter->to_json());
    task.add_files(*writer);
    writer->commit();
  }
  return writes ? hash.digest128().hex() : "";
}

}  // namespace tessera::programs
