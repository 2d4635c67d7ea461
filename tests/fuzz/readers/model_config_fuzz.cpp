// SPDX-License-Identifier: MIT
// config.json of every family: accepted files are valid and survive writing and reading.
#include "tessera/core/json.h"
#include "tessera/models/language_model.h"
#include "tests/fuzz/readers/reader_fuzz.h"

using namespace tessera;

namespace {

void check_config(const LanguageModel& model) {
  const DecoderConfig& config = model.config();
  fuzz::accepts({}, [&] {
    config.validate();
    for (const ModelHead head : {ModelHead::kCausal, ModelHead::kClassification}) {
      if (head == ModelHead::kClassification && config.labels.empty()) continue;
      const std::string text = model.to_json(head);
      const Json again = Json::parse(text, {}, "again.json");
      fuzz::expect(LanguageModel::from_json(again).to_json(head) == text,
                   "a configuration differs after it was written and read");
    }
  });
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::accepts({ErrorCode::kDataLoss}, [&] {
    check_config(
        LanguageModel::from_json(Json::parse(fuzz::text_of(data, size), {}, "config.json")));
  });
  return 0;
}
