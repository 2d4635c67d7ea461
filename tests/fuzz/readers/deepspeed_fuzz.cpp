// SPDX-License-Identifier: MIT
// A DeepSpeed file: defects become findings with a line, never an exception.
#include <algorithm>

#include "lib/interop/deepspeed_file.h"
#include "tests/fuzz/readers/reader_fuzz.h"

using namespace tessera;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text = fuzz::text_of(data, size);
  fuzz::accepts({}, [&] {
    const auto file = programs::DeepSpeedFile::parse(
        std::string(text), "ds_config.json",
        [](const std::string& name) { return name == "learning_rate"; });
    const int64_t lines = 1 + std::count(text.begin(), text.end(), '\n');
    for (const auto& remarks : {file.findings(), file.idle(), file.notes()}) {
      for (const auto& remark : remarks) {
        fuzz::expect(remark.line >= 1 && remark.line <= lines, "a line that the file lacks");
        fuzz::expect(!remark.text.empty(), "a finding without words");
      }
    }
    file.messages();
    if (!file.findings().empty()) return;
    const int64_t stage = file.stage();
    fuzz::expect(stage >= 0 && stage <= 3, "a stage that is none");
    file.quoted("train_batch_size");
  });
  return 0;
}
