#include "examples/common/export.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <set>

#include "tessera/checkpoint/huggingface.h"
#include "tessera/core/hash.h"

namespace tessera::programs {
namespace {

namespace fs = std::filesystem;

bool is_tokenizer_file(const std::string& name) {
  constexpr const char* kNames[] = {"special_tokens_map.json",
                                    "added_tokens.json",
                                    "vocab.json",
                                    "vocab.txt",
                                    "merges.txt",
                                    "spiece.model",
                                    "sentencepiece.bpe.model",
                                    "processor_config.json",
                                    "preprocessor_config.json"};
  return name.starts_with("tokenizer") || name.starts_with("tokenization_") ||
         name.starts_with("chat_template") || name == "tekken.json" ||
         std::find(std::begin(kNames), std::end(kNames), name) != std::end(kNames);
}

bool is_generation_file(const std::string& name) { return name == "generation_config.json"; }

// Files of the directory whose names are wanted, in the order of their names.
void add_files(HuggingFaceWriter& writer, const std::string& directory,
               bool (*wanted)(const std::string&)) {
  if (directory.empty()) return;
  // --tokenizer may name the file itself.
  const fs::path folder =
      fs::is_directory(directory) ? fs::path(directory) : fs::path(directory).parent_path();
  std::set<std::string> paths;
  for (const auto& entry : fs::directory_iterator(folder.empty() ? "." : folder)) {
    if (entry.is_regular_file() && wanted(entry.path().filename())) {
      paths.insert(entry.path().string());
    }
  }
  for (const std::string& path : paths) writer.add_file(path);
}

}  // namespace

std::string write_final(const Prepared& prepared, Strategy& strategy, bool writes) {
  const at::ScalarType dtype = scalar_type_of(prepared.options.dtype);
  std::unique_ptr<HuggingFaceWriter> writer;
  if (writes && prepared.options.save_final) {
    writer = std::make_unique<HuggingFaceWriter>(prepared.options.output_dir + "/final",
                                                 HuggingFaceWriterOptions{.dtype = dtype});
  }
  Xxh3Stream hash;
  const auto name_of = [&](const VisitedParameter& p) {
    const auto& given = prepared.model.checkpoint_name;
    return given ? given(p.block, p.name) : p.block + "." + p.name;
  };
  strategy.visit_parameters([&](const VisitedParameter& p) {
    if (!writes) return;
    const at::Tensor host = p.value.detach().to(at::kCPU, at::kFloat).contiguous();
    hash.update(host.const_data_ptr(), host.nbytes());
    if (writer) writer->add(name_of(p), host);
  });
  strategy.visit_buffers([&](const VisitedParameter& p) {
    if (writer) writer->add_buffer(name_of(p), p.value);
  });
  if (writer) {
    writer->add_text("config.json", prepared.language_model.to_json(prepared.head(), dtype));
    const TrainOptions& o = prepared.options;
    add_files(*writer, o.tokenizer.empty() ? o.model : o.tokenizer, is_tokenizer_file);
    add_files(*writer, o.model, is_generation_file);
    writer->commit();
  }
  return writes ? hash.digest128().hex() : "";
}

}  // namespace tessera::programs
