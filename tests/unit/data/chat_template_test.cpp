// SPDX-License-Identifier: MIT
#include "tessera/data/chat_template.h"

#include "lib/core/file.h"
#include "tests/support/messages.hpp"
#include "tests/support/temp_dir.hpp"
#include "tests/support/test.hpp"
#include "tests/unit/data/sample_paths.hpp"

using namespace tessera;

namespace {

const std::string kChat =
    R"([{"role":"system","content":"Be brief."},{"role":"user","content":"Hi"},
  {"role":"assistant","content":"Grüße!"},{"role":"user","content":"2+2?"},{"role":"assistant","content":"4"}])";

Json json(const std::string& text) { return Json::parse(text, {}, "chat"); }

ChatTemplate with(const std::string& text, const TempDir& dir) {
  dir.write("tokenizer_config.json", R"({"bos_token":"<s>","eos_token":{"content":"</s>"}})");
  return ChatTemplate::choose(dir.write("own.jinja", text), dir.path("."));
}

// The trained parts in brackets.
std::string bracketed(const RenderedChat& chat) {
  std::string text;
  size_t at = 0;
  for (const TextSpan& span : chat.trained) {
    REQUIRE(span.begin >= at);
    REQUIRE(span.end > span.begin);
    text += chat.text.substr(at, span.begin - at) + "[" +
            chat.text.substr(span.begin, span.end - span.begin) + "]";
    at = span.end;
  }
  return text + chat.text.substr(at);
}

std::string trained(const ChatTemplate& chat_template, const std::string& chat,
                    TrainOn train_on = TrainOn::kAssistant) {
  return bracketed(chat_template.render_for_training(json(chat), std::nullopt, train_on));
}

const std::string kUnmarked =
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{{ eos_token }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}";

}  // namespace

TEST_CASE("a tokenizer's chat template is found where transformers keeps it") {
  const auto render = [](const TempDir& dir, const std::optional<Json>& tools = std::nullopt) {
    return ChatTemplate::load(dir.path(".")).render(json(kChat), tools, true);
  };
  const TempDir dir;
  CHECK(error_of(ErrorCode::kInvalidArgument, [&] { render(dir); }) ==
        dir.path(".") +
            ": the tokenizer has no chat template; give --chat_template NAME (chatml, llama-2, "
            "llama-3, mistral, zephyr, gemma, phi) or FILE");
  dir.write("tokenizer_config.json",
            R"({"bos_token":null,"eos_token":{"content":"</s>","lstrip":false},"pad_token":"<pad>",
                "chat_template":"{{ bos_token is defined }}{{ eos_token }}{{ pad_token }}{{ tools }}"})");
  CHECK(render(dir) == "False</s><pad>None");
  dir.write("special_tokens_map.json", R"({"bos_token":"<s>","eos_token":"<other>"})");
  CHECK(render(dir) == "True</s><pad>None");
  dir.write("tokenizer_config.json",
            R"({"chat_template":[{"name":"tool_use","template":"with {{ tools[0].name }}"},
                                 {"name":"default","template":"plain"}]})");
  CHECK(render(dir) == "plain");
  CHECK(render(dir, json(R"([{"name":"f"}])")) == "with f");
  dir.write("chat_template.jinja",
            "of its file {{ messages | length }}{{ add_generation_prompt }}\n");
  CHECK(render(dir) == "of its file 5True");
  const TempDir named;
  named.write(
      "tokenizer_config.json",
      R"({"chat_template":[{"name":"rag","template":"x"},{"name":"tool","template":"y"}]})");
  CHECK(error_of([&] { render(named); }) ==
        named.path(".") +
            "/tokenizer_config.json: chat_template \"rag\": none of the chat templates "
            "(rag, tool) is called default");
  named.write("tokenizer_config.json", R"({"chat_template":"\n{% nothing %}"})");
  CHECK(
      error_of(ErrorCode::kInvalidArgument, [&] {
        render(named);
      }).starts_with(named.path(".") + "/tokenizer_config.json: chat_template:2: there is no tag"));
  CHECK(
      error_of(ErrorCode::kInvalidArgument, [&] { ChatTemplate::choose("nope", dir.path(".")); }) ==
      "no chat template \"nope\": neither a file nor one of chatml, llama-2, llama-3, mistral, "
      "zephyr, gemma, phi");
}

TEST_CASE("a template has one date, which can be set, and says whether it asks for it") {
  const TempDir dir;
  const auto plain = with("{{ messages | length }}", dir);
  CHECK_FALSE(plain.asks_for_date());
  const auto dated = with("{{ strftime_now('%d %b %Y') }}", dir).dated("2024-02-29");
  CHECK(dated.asks_for_date());
  CHECK(dated.date() == "2024-02-29");
  CHECK(dated.render(json(kChat), std::nullopt, false) == "29 Feb 2024");
  const std::string today = plain.date();
  CHECK(today.size() == 10);
  CHECK(plain.dated(today).date() == today);
  for (const char* bad :
       {"", "2023-02-29", "2024-1-01", "0000-01-01", "2024-01-01T", "20240101", "-024-01-01"}) {
    INFO(bad);
    CHECK(error_of(ErrorCode::kInvalidArgument, [&] { plain.dated(bad); }).find("YYYY-MM-DD") !=
          std::string::npos);
  }
}

TEST_CASE("built-in templates write their formats and mark answers with their end tokens") {
  const TempDir dir;
  dir.write("tokenizer_config.json", R"({"bos_token":"<s>","eos_token":"</s>"})");
  const auto text = [&](const std::string& name) {
    return trained(ChatTemplate::choose(name, dir.path(".")), kChat);
  };
  CHECK(text("ChatML") ==
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
        "<|im_start|>assistant\n[Grüße!<|im_end|>]\n<|im_start|>user\n2+2?<|im_end|>\n"
        "<|im_start|>assistant\n[4<|im_end|>]\n");
  CHECK(text("llama-2") ==
        "<s>[INST] <<SYS>>\nBe brief.\n<</SYS>>\n\nHi [/INST][ Grüße! </s>]<s>[INST] 2+2? [/INST]"
        "[ 4 </s>]");
  CHECK(text("Llama-3") ==
        "<s><|start_header_id|>system<|end_header_id|>\n\nBe brief.<|eot_id|>"
        "<|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n[Grüße!<|eot_id|>]"
        "<|start_header_id|>user<|end_header_id|>\n\n2+2?<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n[4<|eot_id|>]");
  CHECK(text("mistral") ==
        "<s>[INST] Be brief.\n\nHi [/INST][ Grüße!</s>][INST] 2+2? [/INST][ 4</s>]");
  CHECK(text("zephyr") ==
        "<|system|>\nBe "
        "brief.</s>\n<|user|>\nHi</s>\n<|assistant|>\n[Grüße!</s>]\n<|user|>\n2+2?</s>\n"
        "<|assistant|>\n[4</s>]\n");
  CHECK(text("gemma") ==
        "<s><start_of_turn>user\nBe brief.\n\nHi<end_of_turn>\n<start_of_turn>model\n"
        "[Grüße!<end_of_turn>]\n<start_of_turn>user\n2+2?<end_of_turn>\n<start_of_turn>model\n"
        "[4<end_of_turn>]\n");
  CHECK(text("phi") ==
        "<|system|>\nBe "
        "brief.<|end|>\n<|user|>\nHi<|end|>\n<|assistant|>\n[Grüße!<|end|>]\n<|user|>\n"
        "2+2?<|end|>\n<|assistant|>\n[4<|end|>]\n");
  const auto end = [&](const char* name) {
    return ChatTemplate::choose(name, dir.path(".")).end_of_turn();
  };
  CHECK(end("chatml") == "<|im_end|>");
  CHECK(end("llama-2") == "</s>");
  CHECK(end("gemma") == "<end_of_turn>");
  const std::string two_users = R"([{"role":"user","content":"a"},{"role":"user","content":"b"}])";
  CHECK(error_of(ErrorCode::kInvalidArgument, [&] {
          trained(ChatTemplate::choose("mistral", dir.path(".")), two_users);
        }).ends_with("the template refuses this chat: user and assistant take turns, found user"));
  const TempDir bare;
  CHECK(error_of([&] {
          trained(ChatTemplate::choose("zephyr", bare.path(".")), kChat);
        }).ends_with("the template refuses this chat: the tokenizer names no eos_token"));
}

TEST_CASE("every built-in template continues the text of its generation prompt") {
  const TempDir dir;
  dir.write("tokenizer_config.json", R"({"bos_token":"<s>","eos_token":"</s>"})");
  for (const std::string& name : ChatTemplate::names()) {
    INFO(name);
    const auto chat_template = ChatTemplate::choose(name, dir.path("."));
    CHECK(chat_template.marks_generation());
    const std::string question = R"([{"role":"user","content":"Hi"})";
    const std::string prompt = chat_template.render(json(question + "]"), std::nullopt, true);
    const RenderedChat chat = chat_template.render_for_training(
        json(question + R"(,{"role":"assistant","content":"Yes"}])"), std::nullopt,
        TrainOn::kAssistant);
    REQUIRE(chat.trained.size() == 1);
    CHECK(chat.text.substr(0, chat.trained[0].begin) == prompt);
  }
}

TEST_CASE("without marks an answer is what it adds to the chat before it") {
  const TempDir dir;
  const auto chat_template = with(kUnmarked, dir);
  CHECK(!chat_template.marks_generation());
  CHECK(chat_template.end_of_turn() == "</s>");
  CHECK(trained(chat_template, kChat) ==
        "<|system|>Be brief.</s>\n<|user|>Hi</s>\n<|assistant|>[Grüße!</s>]\n<|user|>2+2?</s>\n"
        "<|assistant|>[4</s>]\n");
  CHECK(trained(chat_template, kChat, TrainOn::kLast) ==
        "<|system|>Be brief.</s>\n<|user|>Hi</s>\n<|assistant|>Grüße!</s>\n<|user|>2+2?</s>\n"
        "<|assistant|>[4</s>]\n");
  CHECK(trained(chat_template, R"([{"role":"user","content":"a"}])", TrainOn::kAll) ==
        "[<|user|>a</s>\n]");
  CHECK(trained(chat_template, R"([{"role":"user","content":"a"}])") == "<|user|>a</s>\n");
  // Starts with an answer; two consecutive answers.
  CHECK(trained(chat_template,
                R"([{"role":"assistant","content":"a"},{"role":"assistant","content":"b"}])") ==
        "<|assistant|>[a</s>]\n<|assistant|>[b</s>]\n");
  // No end token: the line break ends the answer. White space of the answer itself stays.
  const std::string answer =
      R"([{"role":"user","content":"q"},{"role":"assistant","content":"a \n"}])";
  CHECK(trained(with("{% for m in messages %}{{ m.role }}: {{ m.content | trim }}\n\n{% endfor %}"
                     "{% if add_generation_prompt %}assistant: {% endif %}",
                     dir),
                answer) == "user: q\n\nassistant: [a\n\n]");
  CHECK(trained(with(kUnmarked, dir), answer) == "<|user|>q</s>\n<|assistant|>[a \n</s>]\n");
}

TEST_CASE("marks of the template say what is trained, the last answer's alone when asked") {
  const TempDir dir;
  const auto chat_template = with(
      "{% for m in messages %}{{ m.role }}{% if m.role == 'assistant' %}({% generation %}{{ "
      "m.content }}"
      "{% endgeneration %}/{% generation %}{{ eos_token }}{% endgeneration %}){% endif %}{% endfor "
      "%}",
      dir);
  CHECK(trained(chat_template, kChat) ==
        "systemuserassistant([Grüße!]/[</s>])userassistant([4]/[</s>])");
  CHECK(trained(chat_template, kChat, TrainOn::kLast) ==
        "systemuserassistant(Grüße!/</s>)userassistant([4]/[</s>])");
  CHECK(trained(chat_template, R"([{"role":"user","content":"a"}])", TrainOn::kLast) == "user");
  const auto captured = with(
      "{% macro f(m) %}{% generation %}{{ m.content }}{% endgeneration %}{% endmacro %}"
      "{% for m in messages %}{{ f(m) }}{% endfor %}",
      dir);
  CHECK(captured.render(json(kChat), std::nullopt, false) == "Be brief.HiGrüße!2+2?4");
  CHECK(error_of(ErrorCode::kInvalidArgument, [&] { trained(captured, kChat); })
            .ends_with(
                "own.jinja: a {% generation %} stands in a macro or a block that is captured, so "
                "where its text goes is not known; mark the place where it is printed"));
}

TEST_CASE("a template whose beginnings do not agree is told with the message that differs") {
  const TempDir dir;
  const auto rewritten = [](const ChatTemplate& chat_template) {
    return chat_template.render_for_training(json(kChat), std::nullopt, TrainOn::kAssistant)
        .rewritten;
  };
  // Like templates that keep only the last answer's reasoning.
  const auto chat_template = with(
      "{% for m in messages %}<|{{ m.role }}|>{% if m.role == 'assistant' and loop.last "
      "%}<think>{% endif %}"
      "{{ m.content }}</s>{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}",
      dir);
  CHECK(rewritten(chat_template) ==
        dir.path("own.jinja") +
            ": message 3 is written otherwise when it is the last one: '<think>Grüße!</s>' at byte "
            "50, there 'Grüße!</s><|user|>2+2?</s><|as'");
  CHECK(trained(chat_template, kChat) ==
        "<|system|>Be brief.</s><|user|>Hi</s><|assistant|>[Grüße!</s>]<|user|>2+2?</s>"
        "<|assistant|>[<think>4</s>]");
  CHECK(trained(chat_template, kChat, TrainOn::kLast).ends_with("<|assistant|>[<think>4</s>]"));
  const auto alternating =
      with("{% if messages | length % 2 == 0 %}{{ raise_exception('odd chats only') }}{% endif %}" +
               kUnmarked,
           dir);
  CHECK(rewritten(alternating) ==
        dir.path("own.jinja") +
            ":1: the template refuses this chat: odd chats only; this happens when the chat ends "
            "before message 3, so what the assistant wrote cannot be told");
  CHECK(trained(alternating, kChat) ==
        "<|system|>Be brief.</s>\n<|user|>Hi</s>\n<|assistant|>[Grüße!</s>]\n<|user|>2+2?</s>\n"
        "<|assistant|>[4</s>]\n");
  const auto prompts = with(
      "{% for m in messages %}{{ m.content }}{% endfor %}{% if add_generation_prompt %}long "
      "prompt{% endif %}",
      dir);
  CHECK(rewritten(prompts).find(
            "own.jinja: the chat before message 3, with its generation prompt, does not begin the "
            "whole chat: 'long prompt' at byte 11, there 'Grüße!2+2?4'") != std::string::npos);
  CHECK(trained(prompts, kChat) == "Be brief.Hi[Grüße!]2+2?[4]");
}

TEST_CASE("answers of a prompt are not trained, marked by the template or not") {
  const TempDir dir;
  const auto chat_template = with(kUnmarked, dir);
  for (const TrainOn train_on : {TrainOn::kAssistant, TrainOn::kLast}) {
    CHECK(bracketed(chat_template.render_for_training(json(kChat), std::nullopt, train_on, 4)) ==
          "<|system|>Be brief.</s>\n<|user|>Hi</s>\n<|assistant|>Grüße!</s>\n"
          "<|user|>2+2?</s>\n<|assistant|>[4</s>]\n");
  }
  const auto marked = ChatTemplate::choose("zephyr", dir.path("."));
  for (const size_t prompt : {3, 4}) {
    const RenderedChat chat =
        marked.render_for_training(json(kChat), std::nullopt, TrainOn::kAssistant, prompt);
    CHECK(bracketed(chat).find("<|assistant|>\nGrüße!</s>") != std::string::npos);
    CHECK(bracketed(chat).find("<|assistant|>\n[4</s>]") != std::string::npos);
  }
  for (const auto& one : {chat_template, marked}) {
    CHECK(
        one.render_for_training(json(kChat), std::nullopt, TrainOn::kAssistant, 5).trained.empty());
    CHECK(one.render_for_training(json(kChat), std::nullopt, TrainOn::kLast, 5).trained.empty());
    CHECK(
        one.render_for_training(json(kChat), std::nullopt, TrainOn::kAssistant, 2).trained.size() ==
        2);
  }
}

TEST_CASE("messages reach templates as transformers hands them over") {
  const TempDir dir;
  const auto chat_template = with("{{ messages }}", dir);
  CHECK(chat_template.render(json(R"([{"role":"user","content":null,"reasoning":"r","n":1}])"),
                             std::nullopt, false) ==
        "[{'thinking': 'r', 'role': 'user', 'reasoning': 'r', 'n': 1, 'reasoning_content': 'r'}]");
  CHECK(error_of([&] {
          chat_template.render(json("[5]"), std::nullopt, false);
        }).find("a message is an object with \"role\" and \"content\"") != std::string::npos);
}
