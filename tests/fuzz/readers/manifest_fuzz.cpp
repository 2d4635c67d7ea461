// SPDX-License-Identifier: MIT
// manifest.json of a checkpoint, unchanged and with a matching seal.
#include "lib/checkpoint/manifest_seal.h"
#include "tessera/checkpoint/manifest.h"
#include "tests/fuzz/readers/reader_fuzz.h"

using namespace tessera;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text(fuzz::text_of(data, size));
  const auto parse = [](const std::string& manifest) {
    fuzz::accepts({ErrorCode::kDataLoss}, [&] { Manifest::parse_part(manifest, "manifest.json"); });
    fuzz::accepts({ErrorCode::kDataLoss}, [&] {
      const Manifest read = Manifest::parse(manifest, "manifest.json");
      fuzz::accepts({}, [&] {
        fuzz::expect(read.total_bytes() >= 0, "a negative size");
        const std::string written = read.to_json();
        fuzz::expect(Manifest::parse(written, "again.json").to_json() == written,
                     "a manifest differs after it was written and read");
      });
    });
  };
  parse(text);
  if (text.ends_with('}')) parse(sealed(text));
  return 0;
}
