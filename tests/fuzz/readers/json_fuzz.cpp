// SPDX-License-Identifier: MIT
// Json::parse, every accessor, and JsonWriter, whose text must parse to the same value.
#include "tessera/core/json.h"
#include "tests/fuzz/readers/reader_fuzz.h"

using namespace tessera;

namespace {

template <typename Accessor>
void attempt(const Accessor& accessor) {
  fuzz::accepts({ErrorCode::kDataLoss}, accessor);
}

void visit(const Json& json) {
  attempt([&] { json.as_bool(); });
  attempt([&] { json.as_int64(); });
  attempt([&] { json.as_int64(-1, 1000); });
  attempt([&] { json.as_double(); });
  attempt([&] { json.as_string(); });
  attempt([&] { json.at("a"); });
  attempt([&] { json.at(size_t{1}); });
  attempt([&] { json.get("a", 0.5); });
  attempt([&] { json.fail("here"); });
  if (json.is_array()) {
    for (const Json& item : json.items()) visit(item);
  } else if (json.is_object()) {
    for (const auto& [key, value] : json.members()) visit(value);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text = fuzz::text_of(data, size);
  fuzz::accepts({ErrorCode::kDataLoss}, [&] {
    const Json json = Json::parse(text, {.max_bytes = 1 << 20, .max_depth = 16}, "fuzz.json");
    if (text.size() < 2000) visit(json);
    const std::string written = json.dump();
    fuzz::accepts({}, [&] {
      fuzz::expect(Json::parse(written, {}, "again.json").dump() == written,
                   "a document differs after it was written and read");
    });
  });
  return 0;
}
