// config.json of every architecture: what is accepted has a number of parameters, and reads back
// from what is written of it.
#include "tessera/core/json.h"
#include "tessera/models/bloom.h"
#include "tessera/models/gpt2.h"
#include "tessera/models/llama.h"
#include "tests/fuzz/readers/reader_fuzz.h"

using namespace tessera;

namespace {

template <typename Config>
void check_config(const Json& json) {
  const Config config = Config::from_json(json);
  fuzz::accepts({}, [&] {
    config.validate();
    for (const ModelHead head : {ModelHead::kCausal, ModelHead::kClassification}) {
      if (head == ModelHead::kClassification && config.labels.empty()) continue;
      const auto labels = static_cast<int64_t>(config.labels.size());
      fuzz::expect(config.parameter_count(head, labels) > 0, "no parameters");
      const std::string text = config.to_json(head);
      const Json again = Json::parse(text, {}, "again.json");
      fuzz::expect(Config::from_json(again).to_json(head) == text,
                   "a configuration differs after it was written and read");
    }
  });
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::accepts({ErrorCode::kDataLoss}, [&] {
    const Json json = Json::parse(fuzz::text_of(data, size), {}, "config.json");
    const std::string type = json.at("model_type").as_string();
    if (type == "bloom") check_config<BloomConfig>(json);
    if (type == "gpt2") check_config<Gpt2Config>(json);
    if (type == "llama") check_config<LlamaConfig>(json);
  });
  return 0;
}
