// SPDX-License-Identifier: MIT
// A configuration file of accelerate, torchtitan or any other program. The first character selects
// the file's extension: y (YAML), t (TOML) or j (JSON); the rest is the file.
#include "lib/interop/foreign_config.h"
#include "tests/fuzz/readers/reader_fuzz.h"

using namespace tessera;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string_view text = fuzz::text_of(data, size);
  char kind = 0;
  if (!fuzz::take_kind(text, kind)) return 0;
  const char* name = kind == 'y' ? "config.yaml" : kind == 't' ? "config.toml" : "config.json";
  const std::string path = fuzz::folder().write(name, text);
  fuzz::accepts({ErrorCode::kInvalidArgument}, [&] {
    const auto answer = programs::answer_foreign_config(path);
    fuzz::expect(kind == 'j' || (kind != 'y' && kind != 't') || answer.has_value(), "no answer");
  });
  return 0;
}
