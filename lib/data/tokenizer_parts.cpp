// SPDX-License-Identifier: MIT
#include "lib/data/tokenizer_parts.h"

#include <map>

namespace tessera {
namespace {

using Prepend = Metaspace::Prepend;

void add_steps(const Json& part, Normalizer& normalizer) {
  const std::string type = type_of(part);
  if (type == "Sequence") {
    for (const Json& step : part.at("normalizers").items()) add_steps(step, normalizer);
  } else if (type == "NFC") {
    normalizer.add(Normalizer::Nfc{});
  } else if (type == "Prepend") {
    normalizer.add(Normalizer::Prepend{part.at("prepend").as_string()});
  } else if (type == "Replace") {
    const auto from = part.at("pattern").find("String");
    if (!from) part.at("pattern").fail("only Replace of a String is supported");
    normalizer.add(Normalizer::Replace{from->as_string(), part.at("content").as_string()});
  } else if (type == "Strip") {
    normalizer.add(Normalizer::Strip{part.get("strip_left", true), part.get("strip_right", true)});
  } else {
    part.fail("expected NFC, Prepend, Replace, Strip or a Sequence of them, found " + type);
  }
}

}  // namespace

Metaspace read_metaspace(const Json& part) {
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

std::string type_of(const Json& part) { return part.at("type").as_string(); }

std::vector<Json> steps_of(const Json& part, std::string_view list) {
  if (type_of(part) != "Sequence") return {part};
  return part.at(list).items();
}

Normalizer read_normalizer(const Json& file) {
  Normalizer normalizer;
  if (const auto part = file.find("normalizer")) add_steps(*part, normalizer);
  return normalizer;
}

bool merges_characters(const Json& file) {
  const auto pre_tokenizer = file.find("pre_tokenizer");
  if (pre_tokenizer) return type_of(*pre_tokenizer) == "Metaspace";
  return file.find("normalizer").has_value();
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
