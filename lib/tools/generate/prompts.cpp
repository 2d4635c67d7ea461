// SPDX-License-Identifier: MIT
#include "lib/tools/generate/prompts.h"

#include <algorithm>
#include <filesystem>
#include <iostream>
#include <iterator>
#include <sstream>

#include "lib/core/file.h"
#include "tessera/core/error.h"
#include "tessera/core/json.h"

namespace tessera::programs {
namespace {

std::vector<int64_t> encode(const std::string& text, const std::string& where,
                            const Tokenizer* tokenizer) {
  check(
      tokenizer != nullptr, ErrorCode::kInvalidArgument, where,
      ": a text, but there is no tokenizer; give --tokenizer DIR, or \"input_ids\" as JSON lines");
  check_utf8(text, where);
  const std::vector<int32_t> ids = tokenizer->encode(text);
  return {ids.begin(), ids.end()};
}

void add_json(const std::string& line, const std::string& where, const Tokenizer* tokenizer,
              const PromptLimits& limits, Prompts& prompts) {
  const Json value = Json::parse(line, {}, where);
  const auto text = value.find("prompt"), ids = value.find("input_ids");
  check(text.has_value() != ids.has_value(), ErrorCode::kDataLoss, where,
        ": expected an object with \"prompt\" or \"input_ids\"");
  prompts.texts.push_back(text ? text->as_string() : "");
  if (text) return prompts.ids.push_back(encode(prompts.texts.back(), where, tokenizer));
  prompts.ids.emplace_back();
  for (const Json& id : ids->items()) {
    prompts.ids.back().push_back(id.as_int64(0, limits.vocabulary - 1));
  }
}

std::string read_all(const std::string& path) {
  if (path != "-") return read_file(path);
  const std::string text{std::istreambuf_iterator<char>(std::cin), {}};
  check(!std::cin.bad(), ErrorCode::kDataLoss, "standard input: cannot be read");
  return text;
}

void check_length(size_t length, const std::string& where, const PromptLimits& limits) {
  check(length > 0, ErrorCode::kDataLoss, where,
        ": an empty prompt; a model continues at least one token");
  const auto most = static_cast<size_t>(limits.max_positions);
  check(most == 0 || length < most, ErrorCode::kDataLoss, where, ": a prompt of ", length,
        " tokens, but the model has ", most, " positions for prompt and answer; shorten it");
}

}  // namespace

// The first byte tells whether content or an error follows: its code and message.
std::string read_on_first_rank(const std::string& path, ControlChannel& control,
                               const std::string& hint) {
  std::string said;
  if (control.rank() == 0) {
    try {
      said = '+' + read_all(path);
    } catch (const Error& error) {
      const bool there = path == "-" || std::filesystem::exists(path);
      said = concat('-', static_cast<char>(error.code()), error.what(), there ? "" : hint);
    }
  }
  const std::string heard = control.exchange(said).front();
  if (heard.front() == '-') throw Error(static_cast<ErrorCode>(heard[1]), heard.substr(2));
  return heard.substr(1);
}

void add_text(const std::string& text, const std::string& where, const Tokenizer* tokenizer,
              const PromptLimits& limits, Prompts& prompts) {
  prompts.texts.push_back(text);
  prompts.ids.push_back(encode(text, where, tokenizer));
  check_length(prompts.ids.back().size(), where, limits);
}

Prompts parse_prompts(const std::string& content, const std::string& origin,
                      const std::string& format, const Tokenizer* tokenizer,
                      const PromptLimits& limits) {
  const bool json = format == "jsonl" || (format == "auto" && content.starts_with('{'));
  Prompts prompts;
  std::istringstream in(content);
  std::string line;
  for (int64_t number = 1; std::getline(in, line); ++number) {
    if (!line.empty() && line.back() == '\r') line.pop_back();
    const std::string where = concat(origin, ":", number);
    if (json) {
      if (line.find_first_not_of(" \t") == line.npos) continue;
      add_json(line, where, tokenizer, limits, prompts);
      check_length(prompts.ids.back().size(), where, limits);
    } else {
      add_text(line, where, tokenizer, limits, prompts);
    }
  }
  check(!prompts.ids.empty(), ErrorCode::kDataLoss, origin, ": holds no prompt");
  return prompts;
}

}  // namespace tessera::programs
