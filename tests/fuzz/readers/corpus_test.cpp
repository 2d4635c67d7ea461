// SPDX-License-Identifier: MIT
// Every reader reads its corpus of difficult inputs in every build, without Clang.
#include <algorithm>
#include <cstdint>
#include <filesystem>

#include "lib/core/file.h"
#include "tests/support/test.hpp"

using namespace tessera;

// The targets' functions; CMakeLists.txt names each.
// clang-format off
#define TESSERA_READERS(X) \
  X(adapter_config) \
  X(chat_template) \
  X(control_frames) \
  X(deepspeed) \
  X(foreign_config) \
  X(index) \
  X(json) \
  X(labelled_texts) \
  X(manifest) \
  X(model_config) \
  X(program) \
  X(safetensors) \
  X(squad) \
  X(token_cache) \
  X(token_rows) \
  X(tokenizer)
// clang-format on
#define TESSERA_DECLARE(reader) extern "C" int fuzz_##reader(const uint8_t* data, size_t size);
TESSERA_READERS(TESSERA_DECLARE)

namespace {

using Target = int (*)(const uint8_t* data, size_t size);

// Prints the input's name if a defect aborts.
void read_corpus(const std::string& reader, Target target) {
  const std::filesystem::path folder = std::filesystem::path(TESSERA_CORPUS) / reader;
  std::vector<std::string> paths;
  for (const auto& file : std::filesystem::directory_iterator(folder)) {
    paths.push_back(file.path().string());
  }
  std::ranges::sort(paths);
  REQUIRE(paths.size() > 5);
  for (const std::string& path : paths) {
    INFO(path);
    const std::string bytes = read_file(path);
    CHECK(target(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()) == 0);
  }
}

}  // namespace

#define TESSERA_CASE(reader) \
  TEST_CASE("the corpus of " #reader) { read_corpus(#reader, &fuzz_##reader); }
TESSERA_READERS(TESSERA_CASE)
