// SPDX-License-Identifier: MIT
// Chats in published templates, compared with transformers and TRL
// (scripts/make_published_chats_fixture.py).
#include <algorithm>
#include <optional>

#include "lib/core/file.h"
#include "lib/core/hash.h"
#include "tessera/data/chat_examples.h"
#include "tests/support/temp_dir.hpp"
#include "tests/support/test.hpp"
#include "tests/unit/data/sample_paths.hpp"

using namespace tessera;

namespace {

const Json& fixture() {
  static const Json file =
      Json::parse_file(source_path("tests/unit/data/fixtures/published_chats.json"));
  return file;
}

// The sample's tokenizer with a family's special tokens added, and its template.
struct Family {
  explicit Family(const Json& described, const std::string& template_end = "") {
    const std::string sample = read_file(sample_tokenizer() + "/tokenizer.json", 64 << 20);
    const std::string key = "\"added_tokens\": [";
    const size_t at = sample.find(key) + key.size();
    std::string added;
    int id = 2000;
    for (const Json& token : described.at("added").items()) {
      JsonWriter out;
      out.begin_object().field("id", id++).field("content", token.as_string());
      for (const char* no : {"single_word", "lstrip", "rstrip", "normalized"}) out.field(no, false);
      added += out.field("special", true).end_object().text() + ",";
    }
    dir.write("tokenizer.json", sample.substr(0, at) + added + sample.substr(at));
    JsonWriter config;
    config.begin_object();
    for (const char* name : {"bos_token", "eos_token"}) {
      if (!described.at(name).is_null()) config.field(name, described.at(name).as_string());
    }
    config.field("unk_token", "<unk>").field("pad_token", "<pad>");
    config.field("chat_template", described.at("text").as_string() + template_end);
    dir.write("tokenizer_config.json", config.end_object().text());
    tokenizer.emplace(Tokenizer::load(dir.path(".")));
    chat_template.emplace(ChatTemplate::load(dir.path(".")));
  }

  TempDir dir;
  std::optional<Tokenizer> tokenizer;
  std::optional<ChatTemplate> chat_template;
};

// Replaces today's date by the fixture's, which has the same length.
std::string dated(std::string text) {
  const std::string key = "Current date: ";
  const std::string date = fixture().at("date").as_string();
  const size_t at = text.find(key);
  if (at != std::string::npos) text.replace(at + key.size(), date.size(), date);
  return text;
}

std::optional<std::string> rendered(const ChatTemplate& chat_template, const Json& chat,
                                    bool prompt) {
  try {
    return dated(chat_template.render(chat.at("messages"), chat.find("tools"), prompt));
  } catch (const Error&) {
    return std::nullopt;
  }
}

std::string short_hash(const std::string& text) { return sha256_hex(text).substr(0, 16); }

// "[0,4][9,12]"
std::string ranges(const std::vector<int32_t>& labels) {
  std::string text;
  for (size_t begin = 0; begin < labels.size(); ++begin) {
    if (labels[begin] == kIgnoredLabel) continue;
    size_t end = begin;
    while (end < labels.size() && labels[end] != kIgnoredLabel) ++end;
    text += concat('[', begin, ',', end, ']');
    begin = end;
  }
  return text;
}

void check_case(const Family& family, const Json& one, const Json& chat) {
  const ChatTemplate& chat_template = *family.chat_template;
  const std::optional<std::string> published = rendered(chat_template, chat, false);
  const Json expected = one.find("published").value_or(one.at("text"));
  REQUIRE(published.has_value() == !expected.is_null());
  if (published) CHECK(*published == expected.as_string());
  const std::optional<std::string> prompt = rendered(chat_template, chat, true);
  REQUIRE(prompt.has_value() == !one.at("prompt").is_null());
  if (prompt) CHECK(short_hash(*prompt) == one.at("prompt").as_string());
  const auto train = [&](TrainOn train_on) {
    return chat_template.render_for_training(chat.at("messages"), chat.find("tools"), train_on);
  };
  if (one.at("text").is_null()) {
    CHECK_THROWS_AS(train(TrainOn::kAssistant), Error);
    return;
  }
  RenderedChat found = train(TrainOn::kAssistant);
  CHECK(found.rewritten == "");
  CHECK(found.in_training_form == chat_template.training_form().has_value());
  found.text = dated(found.text);
  CHECK(found.text == one.at("text").as_string());
  const Example row = chat_example(found, *family.tokenizer);
  CHECK(row.input_ids.size() == static_cast<size_t>(one.at("tokens").as_int64()));
  std::string ids;
  for (const int32_t id : row.input_ids) ids += (ids.empty() ? "" : " ") + std::to_string(id);
  CHECK(short_hash(ids) == one.at("ids").as_string());
  std::string trained;
  for (const Json& range : one.at("trained").items()) trained += range.dump();
  CHECK(ranges(row.labels) == trained);
  if (published) CHECK(dated(train(TrainOn::kAll).text) == *published);
}

}  // namespace

TEST_CASE("chats under published templates have the texts, ids and masks of transformers and TRL") {
  const Json templates = fixture().at("templates"), chats = fixture().at("chats");
  size_t compared = 0;
  for (const auto& [name, described] : templates.members()) {
    INFO(name);
    const Family family(described);
    CHECK(family.chat_template->training_form().has_value() == (name != "phi-4"));
    for (const Json& one : fixture().at("cases").items()) {
      if (one.at("template").as_string() != name) continue;
      INFO(one.at("chat").as_string());
      check_case(family, one, chats.at(one.at("chat").as_string()));
      ++compared;
    }
  }
  CHECK(compared == 180);
}

TEST_CASE("the last answer alone is trained as its prompt asks for it") {
  const Json templates = fixture().at("templates"), chats = fixture().at("chats");
  for (const auto& [name, described] : templates.members()) {
    INFO(name);
    const Family family(described);
    for (const auto& [about, chat] : chats.members()) {
      INFO(about);
      const Json messages = chat.at("messages");
      RenderedChat all, last;
      try {
        all = family.chat_template->render_for_training(messages, chat.find("tools"),
                                                        TrainOn::kAssistant);
      } catch (const Error&) {
        continue;
      }
      last =
          family.chat_template->render_for_training(messages, chat.find("tools"), TrainOn::kLast);
      CHECK(last.rewritten == "");
      REQUIRE(last.trained.size() == 1);
      const auto trained = [](const RenderedChat& one) {
        const TextSpan span = one.trained.back();
        std::string text = one.text.substr(span.begin, span.end - span.begin);
        text.erase(text.find_last_not_of('\n') + 1);
        const std::string header = "<|start|>assistant";  // TRL also trains gpt-oss' headers
        return text.starts_with(header) ? text.substr(header.size()) : text;
      };
      if (name.starts_with("Qwen3") && about == "ends with a question") continue;
      CHECK(trained(last) == trained(all));
    }
  }
}

TEST_CASE("Mistral's system and tools stand where the answers that are trained can see them") {
  const Family family(fixture().at("templates").at("Mistral-Nemo"));
  const Json chat = fixture().at("chats").at("tools, turns");
  const auto text = [&](TrainOn train_on) {
    return family.chat_template
        ->render_for_training(chat.at("messages"), chat.find("tools"), train_on)
        .text;
  };
  const std::string all = text(TrainOn::kAssistant), last = text(TrainOn::kLast);
  CHECK(all.starts_with("<s>[AVAILABLE_TOOLS][{"));
  CHECK(all.find("[/AVAILABLE_TOOLS][INST]Be brief.\n\nHi[/INST]") != std::string::npos);
  CHECK(all.find("Be brief.", all.find("Hi[/INST]")) == std::string::npos);
  CHECK(last.starts_with("<s>[INST]Hi[/INST]"));
  CHECK(last.ends_with("[/AVAILABLE_TOOLS][INST]Be brief.\n\nThanks[/INST]Welcome.</s>"));
}

TEST_CASE("published templates are known by their text, and by nothing else") {
  const Json described = fixture().at("templates").at("Qwen3");
  const Family ended(described, "\n \n");
  REQUIRE(ended.chat_template->training_form().has_value());
  CHECK(ended.chat_template->training_form()->name == "Qwen3");
  CHECK(ended.chat_template->sources().front().second ==
        described.at("text").as_string() + "\n \n");
  const Family other(described, "{# mine #}");
  CHECK(!other.chat_template->training_form());
  const TempDir dir;
  const std::string own = dir.write("own.jinja", described.at("text").as_string());
  CHECK(ChatTemplate::choose(own, ended.dir.path(".")).training_form().has_value());
  CHECK(!ChatTemplate::choose("chatml", ended.dir.path(".")).training_form());
}

TEST_CASE("generation stops where the template ends a turn, not where it ends a chat") {
  for (const auto& [name, end] :
       {std::pair("Qwen3", "<|im_end|>"), std::pair("Phi-3.5", "<|end|>"),
        std::pair("Phi-4-mini", "<|end|>"), std::pair("gpt-oss", "<|return|>"),
        std::pair("DeepSeek-R1-Distill", "<｜end▁of▁sentence｜>"),
        std::pair("Mistral-Nemo", "</s>")}) {
    INFO(name);
    const Family family(fixture().at("templates").at(name));
    CHECK(family.chat_template->end_of_turn() == end);
  }
}

TEST_CASE("answers under unknown templates that rewrite them are found in the whole chat") {
  const Json templates = fixture().at("templates"), chats = fixture().at("chats");
  // The published templates with a comment, so that they are not recognised. Shows the trained
  // parts of a rewritten chat between bars.
  const auto found = [&](const std::string& name, const std::string& chat) {
    const Family family(templates.at(name), "{# mine #}");
    const RenderedChat one = family.chat_template->render_for_training(
        chats.at(chat).at("messages"), chats.at(chat).find("tools"), TrainOn::kAssistant);
    CHECK(!one.in_training_form);
    std::string text = one.rewritten.empty() ? "alike" : "";
    for (const TextSpan& span : one.trained) {
      text += "|" + one.text.substr(span.begin, span.end - span.begin);
    }
    return text;
  };
  CHECK(found("Qwen3", "one turn") == "alike|<think>\n\n</think>\n\nA model.<|im_end|>");
  CHECK(found("Qwen3", "thoughts") ==
        "|42<|im_end|>|<think>\nOnce more.\n</think>\n\n43<|im_end|>");
  CHECK(
      found("Qwen3", "tools") ==
      "|<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Zürich\", \"days\": 2}}\n"
      "</tool_call><|im_end|>|<think>\n\n</think>\n\n21.5 degrees.<|im_end|>");
  CHECK(found("Phi-3.5", "turns") == "|Hello!<|end|>|4.<|end|>|Welcome.<|end|>\n<|endoftext|>");
  CHECK(found("Phi-4-mini", "turns") == "|Hello!<|end|>|4.<|end|>|Welcome.<|end|><|endoftext|>");
  CHECK(found("gpt-oss", "thoughts") ==
        "|<|channel|>final<|message|>42|<|channel|>analysis<|message|>\nOnce more.\n<|end|>"
        "<|start|>assistant<|channel|>final<|message|>43<|return|>");
  CHECK(found("DeepSeek-R1-Distill", "thoughts in texts") ==
        "|\n\n42<｜end▁of▁sentence｜>|43<｜end▁of▁sentence｜>");
  CHECK(found("Mistral-Nemo", "tools, turns") ==
        "|Hello!</s>|[TOOL_CALLS][{\"name\": \"weather\", \"arguments\": {\"city\": \"Zürich\", "
        "\"days\": 2}, \"id\": \"abcdef123\"}]</s>|21.5 degrees.</s>|Welcome.</s>");
  CHECK(found("Mistral-Nemo", "system") == "|Hello!</s>|Bye.</s>");
}
