// SPDX-License-Identifier: MIT
// adapter_config.json: accepted configurations survive writing and reading.
#include "tessera/checkpoint/adapter.h"
#include "tessera/core/json.h"
#include "tests/fuzz/readers/reader_fuzz.h"

using namespace tessera;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::accepts({ErrorCode::kDataLoss}, [&] {
    const AdapterConfig config =
        AdapterConfig::from_json(Json::parse(fuzz::text_of(data, size), {}, "adapter_config.json"));
    fuzz::accepts({}, [&] {
      const std::string text = config.to_json();
      const Json again = Json::parse(text, {}, "again.json");
      fuzz::expect(AdapterConfig::from_json(again).to_json() == text,
                   "a configuration differs after it was written and read");
    });
  });
  return 0;
}
