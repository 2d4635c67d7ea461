#include "lib/data/tokenizer_parts.h"

#include <map>

namespace tessera {
namespace {

using Prepend = Metaspace::Prepend;

Metaspace metaspace_of_normalizer(const std::vector<Json>& steps) {
  const Json& last = steps.back();
  if (type_of(last) != "Replace" || last.at("pattern").at("String").as_string() != " " ||
      last.at("content").as_string() != kMetaspace) {
    last.fail("only Replace of spaces by U+2581 is supported as last normalizer, found " +
              type_of(last));
  }
  if (steps.size() == 1) return {.prepend = Prepend::kNever, .normalizes = true};
  const Json& first = steps.front();
  if (steps.size() > 2 || type_of(first) != "Prepend" ||
      first.at("prepend").as_string() != kMetaspace) {
    first.fail("only Prepend of U+2581 is supported before Replace, found " + type_of(first));
  }
  return {.prepend = Prepend::kAlways, .normalizes = true};
}

Metaspace metaspace_of_pre_tokenizer(const Json& part) {
  if (part.at("replacement").as_string() != kMetaspace) {
    part.at("replacement").fail("only U+2581 is supported");
  }
  const std::map<std::string, Prepend> schemes{
      {"never", Prepend::kNever}, {"first", Prepend::kFirst}, {"always", Prepend::kAlways}};
  const auto scheme = schemes.find(part.get("prepend_scheme", "always"));
  if (scheme == schemes.end()) part.at("prepend_scheme").fail("expected never, first or always");
  if (scheme->second != Prepend::kNever && !part.get("add_prefix_space", true)) {
    part.at("add_prefix_space").fail("contradicts prepend_scheme " + scheme->first);
  }
  return {.prepend = scheme->second, .split = part.get("split", true)};
}

}  // namespace

std::string type_of(const Json& part) { return part.at("type").as_string(); }

std::vector<Json> steps_of(const Json& part, std::string_view list) {
  if (type_of(part) != "Sequence") return {part};
  return part.at(list).items();
}

std::optional<Metaspace> read_metaspace(const Json& file) {
  const auto normalizer = file.find("normalizer");
  const auto pre_tokenizer = file.find("pre_tokenizer");
  const bool pre = pre_tokenizer && type_of(*pre_tokenizer) == "Metaspace";
  const std::vector<Json> steps =
      normalizer ? steps_of(*normalizer, "normalizers") : std::vector<Json>();
  if (steps.empty()) {
    return pre ? std::optional(metaspace_of_pre_tokenizer(*pre_tokenizer)) : std::nullopt;
  }
  if (pre_tokenizer) {
    normalizer->fail("normalizers beside a pre-tokenizer are not supported, found " +
                     type_of(*normalizer));
  }
  return metaspace_of_normalizer(steps);
}

bool read_fallback_decoder(const Json& file) {
  const Json decoder = file.at("decoder");
  const std::vector<Json> steps = steps_of(decoder, "decoders");
  const std::vector<std::string> wanted{"Replace", "ByteFallback", "Fuse", "Strip"};
  if (steps.size() < 3 || steps.size() > 4) {
    decoder.fail("expected Replace, ByteFallback, Fuse and perhaps Strip");
  }
  for (size_t i = 0; i < steps.size(); ++i) {
    if (type_of(steps[i]) != wanted[i]) {
      steps[i].fail("expected " + wanted[i] + ", found " + type_of(steps[i]));
    }
  }
  if (steps[0].at("pattern").at("String").as_string() != kMetaspace ||
      steps[0].at("content").as_string() != " ") {
    steps[0].fail("only Replace of U+2581 by a space is supported");
  }
  if (steps.size() == 3) return false;
  const Json& strip = steps[3];
  if (strip.at("content").as_string() != " " || strip.at("stop").as_int64() != 0) {
    strip.fail("only Strip of one space at the start is supported");
  }
  return strip.at("start").as_int64(0, 1) == 1;
}

}  // namespace tessera
