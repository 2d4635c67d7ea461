#include "examples/common/export.h"

#include <ATen/ATen.h>

#include <filesystem>
#include <memory>

#include "tessera/checkpoint/huggingface.h"
#include "tessera/core/hash.h"

namespace tessera::programs {

std::string write_final(const Prepared& prepared, Strategy& strategy, bool writes) {
  const at::ScalarType dtype = scalar_type_of(prepared.options.dtype);
  std::unique_ptr<HuggingFaceWriter> writer;
  if (writes && prepared.options.save_final) {
    writer = std::make_unique<HuggingFaceWriter>(prepared.options.output_dir + "/final",
                                                 HuggingFaceWriterOptions{.dtype = dtype});
  }
  Xxh3Stream hash;
  const auto& name_of = prepared.model.checkpoint_name;
  strategy.visit_parameters([&](const VisitedParameter& p) {
    if (!writes) return;
    const at::Tensor host = p.value.detach().to(at::kCPU, at::kFloat).contiguous();
    hash.update(host.const_data_ptr(), host.nbytes());
    if (writer) writer->add(name_of ? name_of(p.block, p.name) : p.block + "." + p.name, host);
  });
  if (writer) {
    writer->add_text("config.json", prepared.language_model.to_json(prepared.head(), dtype));
    if (!prepared.tokenizer_directory.empty()) {
      for (const char* name :
           {"tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"}) {
        const auto path = std::filesystem::path(prepared.tokenizer_directory) / name;
        if (std::filesystem::exists(path)) writer->add_file(path.string());
      }
    }
    writer->commit();
  }
  return writes ? hash.digest128().hex() : "";
}

}  // namespace tessera::programs
