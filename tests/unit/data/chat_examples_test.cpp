// SPDX-License-Identifier: MIT
#include "tessera/data/chat_examples.h"

#include <algorithm>

#include "lib/data/lines.h"
#include "tests/support/messages.hpp"
#include "tests/support/temp_dir.hpp"
#include "tests/support/test.hpp"
#include "tests/unit/data/sample_paths.hpp"

using namespace tessera;

namespace {

const Tokenizer& sample() {
  static const Tokenizer tokenizer = Tokenizer::load(sample_tokenizer());
  return tokenizer;
}

struct Read {
  std::vector<Example> rows;
  ChatCounts counts;
};

Read read_chats(const std::string& path, const ChatOptions& options = {},
                RowIssues* issues = nullptr, const std::string& name = "chatml") {
  Read read;
  read.counts =
      for_each_chat_example(path, sample(), ChatTemplate::choose(name, sample_tokenizer()), options,
                            issues, [&](const Example& row) { read.rows.push_back(row); });
  return read;
}

std::string shown(const Example& row) { return shown_chat(row, sample(), /*colour=*/false); }

// The chat in a template's marks, so that its trained bytes are known.
std::string shown(const RenderedChat& chat) {
  std::string text;
  size_t at = 0;
  for (const TextSpan& span : chat.trained) {
    text += chat.text.substr(at, span.begin - at) + "\u27E6" +
            chat.text.substr(span.begin, span.end - span.begin) + "\u27E7";
    at = span.end;
  }
  return text + chat.text.substr(at);
}

std::string exchange(int number) {
  const std::string n = std::to_string(number);
  return R"({"role":"user","content":"What is )" + n +
         R"( and one?"},{"role":"assistant","content":"It is )" + std::to_string(number + 1) +
         R"(, I think."})";
}

std::string chat_of(int exchanges, const std::string& system = "") {
  std::string messages;
  if (!system.empty()) messages = R"({"role":"system","content":")" + system + R"("},)";
  for (int i = 0; i < exchanges; ++i) messages += (i ? "," : "") + exchange(i);
  return "{\"messages\":[" + messages + "]}\n";
}

}  // namespace

TEST_CASE("every token that covers a trained byte is trained, and no other") {
  const std::string text = "Grüße aus Москва, 12345 😀😀 naïve</s> the end नदी";
  const std::vector<Token> tokens = sample().encode_with_offsets(text, false);
  size_t compared = 0;
  for (size_t begin = 0; begin < text.size(); ++begin) {
    for (size_t end = begin + 1; end <= text.size(); ++end) {
      const Example row = chat_example({text, {{begin, end}}}, sample());
      REQUIRE(row.labels.size() == tokens.size());
      for (size_t i = 0; i < tokens.size(); ++i) {
        const bool covers = tokens[i].begin < end && tokens[i].end > begin;
        REQUIRE(row.input_ids[i] == tokens[i].id);
        REQUIRE((row.labels[i] == (covers ? tokens[i].id : kIgnoredLabel)));
        ++compared;
      }
    }
  }
  CHECK(compared > 10000);
  const Example two = chat_example({text, {{0, 3}, {12, 20}}}, sample());
  for (size_t i = 0; i < tokens.size(); ++i) {
    const bool covers = tokens[i].begin < 3 || (tokens[i].begin < 20 && tokens[i].end > 12);
    CHECK((two.labels[i] != kIgnoredLabel) == covers);
  }
}

TEST_CASE("tokens that cover nothing belong to the byte where they stand") {
  // With metaspaces the first token of a text may be the space that the tokenizer prepends.
  const TempDir dir;
  const Tokenizer spaced = Tokenizer::load(source_path("tests/unit/data/fixtures/metaspace.json"));
  const std::string text = "</s>Ж";
  const std::vector<Token> tokens = spaced.encode_with_offsets(text, false);
  REQUIRE(tokens.at(1).begin == tokens.at(1).end);
  const Example behind = chat_example({text, {{4, 6}}}, spaced);
  CHECK(behind.labels[0] == kIgnoredLabel);
  CHECK(behind.labels[1] == tokens[1].id);
  const Example before = chat_example({text, {{0, 4}}}, spaced);
  CHECK(before.labels[0] == tokens[0].id);
  CHECK(before.labels[1] == kIgnoredLabel);
}

TEST_CASE("rows of chats are marked as their templates mark them, in every form") {
  const TempDir dir;
  const std::string lines =
      chat_of(2, "Be brief.") + "\n" +
      R"({"prompt":"Hi","completion":"Grüße!"})"
      "\n"
      R"({"instruction":"Add","input":"2 and 2","output":"4"})"
      "\n"
      R"({"conversations":[{"from":"human","value":"Hi"},{"from":"gpt","value":"Hello"}]})";
  const std::string path = dir.write("c.jsonl", lines);
  for (const std::string name :
       {"chatml", "llama-2", "llama-3", "mistral", "zephyr", "gemma", "phi"}) {
    if (name == "gemma" || name == "mistral") continue;  // no system role
    CAPTURE(name);
    const ChatTemplate chat_template = ChatTemplate::choose(name, sample_tokenizer());
    for (const TrainOn train_on : {TrainOn::kAll, TrainOn::kAssistant, TrainOn::kLast}) {
      const Read read = read_chats(path, {.train_on = train_on}, nullptr, name);
      REQUIRE(read.rows.size() == 4);
      size_t at = 0;
      for_each_json_text(path, [&](std::string_view text, const std::string&) {
        const ChatRecord record = read_chat_record(Json::parse(text, {}, "row"));
        CHECK(shown(read.rows[at++]) ==
              shown(chat_template.render_for_training(record.messages, record.tools, train_on)));
      });
    }
  }
  const Read read = read_chats(path);
  CHECK(shown(read.rows[1]) ==
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n\u27E6Grüße!<|im_end|>\u27E7\n");
  CHECK(read.counts.forms_text() ==
        "1 chats by messages; 1 by prompt and completion; 1 by instruction, input and output; 1 by "
        "conversations");
  std::string array = "[";
  for_each_json_text(path, [&](std::string_view text, const std::string& place) {
    CHECK(place.starts_with(path + ":"));
    array += (array.size() > 1 ? " ,\n" : " ") + std::string(text);
  });
  const Read items = read_chats(dir.write("c.json", array + "]\n"));
  for (size_t i = 0; i < 4; ++i) CHECK(items.rows.at(i).labels == read.rows[i].labels);
}

TEST_CASE("chats that are too long lose whole turns, are left out, or are cut") {
  const TempDir dir;
  const std::string path = dir.write("c.jsonl", chat_of(12, "Be brief.") + chat_of(1));
  const Read whole = read_chats(path, {.max_seq_length = 100000});
  const auto length = static_cast<int64_t>(whole.rows[0].input_ids.size());
  for (const int64_t most : {length, length - 1, length / 2, length / 4}) {
    const Read read = read_chats(path, {.max_seq_length = most});
    REQUIRE(read.rows.size() == 2);
    const std::string text = shown(read.rows[0]);
    const int64_t kept = std::count(text.begin(), text.end(), '?');
    CHECK(static_cast<int64_t>(read.rows[0].input_ids.size()) <= most);
    CHECK(read.counts.shortened == (most < length));
    CHECK(read.counts.dropped_messages == 2 * (12 - kept));
    // As many exchanges as fit, with the system message and the last exchanges unchanged.
    std::string messages = R"({"messages":[{"role":"system","content":"Be brief."})";
    std::string longer = messages;
    for (int i = 12 - static_cast<int>(kept); i < 12; ++i) messages += "," + exchange(i);
    for (int i = 11 - static_cast<int>(kept); i < 12; ++i) longer += "," + exchange(std::max(i, 0));
    CHECK(shown(read_chats(dir.write("k.jsonl", messages + "]}"), {.max_seq_length = 100000})
                    .rows[0]) == text);
    CHECK(static_cast<int64_t>(
              read_chats(dir.write("l.jsonl", longer + "]}"), {.max_seq_length = 100000})
                  .rows[0]
                  .input_ids.size()) > most);
  }
  RowIssues issues(false);
  const std::string many = chat_of(1) + [&] {
    std::string all;
    for (int i = 0; i < 30; ++i)
      all += R"({"prompt":"Hi","completion":"Ho"})"
             "\n";
    return all;
  }();
  const Read short_rows = read_chats(dir.write("m.jsonl", many), {.max_seq_length = 60}, &issues);
  CHECK(short_rows.rows.size() == 30);
  CHECK(issues.text() ==
        "1 of 31 rows skipped: last exchange longer than --max_seq_length 60 (1): " +
            dir.path("m.jsonl") + ":1");

  const Read skipped =
      read_chats(path, {.max_seq_length = length / 2, .long_chats = LongChats::kSkip});
  CHECK(skipped.rows.size() == 1);
  CHECK(skipped.counts.skipped_long == 1);

  // Cuts after an end of turn, and within an answer.
  const auto first_end = std::ranges::find_if(whole.rows[0].labels,
                                              [](int32_t label) { return label != kIgnoredLabel; });
  const int64_t within = first_end - whole.rows[0].labels.begin() + 2;
  RowIssues none;
  CHECK(error_of([&] {
          read_chats(path, {.max_seq_length = within, .long_chats = LongChats::kCut}, &none);
        }).find("more than 5 % of the rows lose the end of an answer: ") != std::string::npos);
  CHECK(error_of([&] {
          read_chats(path, {.max_seq_length = within, .long_chats = LongChats::kCut});
        }).find(":1: the end of an answer is cut off; raise --max_seq_length") !=
        std::string::npos);
  auto end = first_end;
  while (*end != kIgnoredLabel) ++end;
  const int64_t behind = end - whole.rows[0].labels.begin();
  const Read cut = read_chats(dir.write("o.jsonl", chat_of(12, "Be brief.")),
                              {.max_seq_length = behind, .long_chats = LongChats::kCut});
  CHECK(cut.counts.cut == 1);
  CHECK(cut.counts.cut_answers == 0);
  CHECK(std::ranges::equal(cut.rows[0].labels,
                           std::span(whole.rows[0].labels).first(static_cast<size_t>(behind))));
}

TEST_CASE("the oldest exchange goes whole, and what the system said stays") {
  const auto after = [](const std::string& roles) {
    JsonWriter out;
    out.begin_array();
    for (const char role : roles) {
      const char* name = role == 's'   ? "system"
                         : role == 'u' ? "user"
                         : role == 'a' ? "assistant"
                                       : "tool";
      out.begin_object().field("role", name).field("content", "x").end_object();
    }
    const auto left = without_oldest_exchange(Json::parse(out.end_array().text(), {}, "chat"));
    if (!left) return std::string("none");
    std::string names;
    for (const Json& message : left->items()) names += message.at("role").as_string()[0];
    return names;
  };
  CHECK(after("suaua") == "sua");
  CHECK(after("uata"
              "ua") == "ua");
  CHECK(after("suatata") == "none");
  CHECK(after("aua") == "ua");
  CHECK(after("ssuuau") == "ssuau");
  CHECK(after("s") == "none");
}

TEST_CASE("answers of a prompt are not trained, though exchanges of it are dropped") {
  const TempDir dir;
  std::string prompt;
  for (int i = 0; i < 6; ++i) prompt += exchange(i) + ",";
  const std::string row = R"({"system":"Be brief.","prompt":[)" + prompt +
                          R"({"role":"user","content":"Bye"}],"completion":[)"
                          R"({"role":"assistant","content":"Bye."},{"role":"user","content":"?"},)"
                          R"({"role":"assistant","content":"Yes."}]})";
  const std::string path = dir.write("c.jsonl", row + "\n");
  const auto whole =
      static_cast<int64_t>(read_chats(path, {.max_seq_length = 4096}).rows.at(0).input_ids.size());
  for (const int64_t most : {whole, whole - 1, whole / 2, whole / 3}) {
    CAPTURE(most);
    const Read read = read_chats(path, {.max_seq_length = most});
    const std::string text = shown(read.rows.at(0));
    CHECK((read.counts.shortened == 1) == (most < whole));
    CHECK(
        text.ends_with("\u27E6Bye.<|im_end|>\u27E7\n<|im_start|>user\n?<|im_end|>\n"
                       "<|im_start|>assistant\n\u27E6Yes.<|im_end|>\u27E7\n"));
    CHECK(std::ranges::count(text, '\xA6') == 2);
    CHECK(text.find("Be brief.") != std::string::npos);
  }
  const Read last = read_chats(path, {.max_seq_length = 4096, .train_on = TrainOn::kLast});
  CHECK(shown(last.rows.at(0)).find("\u27E6Bye.") == std::string::npos);
}

TEST_CASE("chats whose template rewrites answers are counted, or refused with what helps") {
  const TempDir dir;
  const std::string path = dir.write("c.jsonl", chat_of(2) + chat_of(1) + chat_of(3));
  // Reasoning of the last answer only; the generation prompt may not start the answer either.
  const auto thinking = [&](const std::string& prompt) {
    return dir.write(
        "t.jinja",
        "{% for m in messages %}{{ m.role }}:{% if m.role == 'assistant' and loop.last "
        "%}<think>{% endif %}{{ m.content + eos_token }}{% endfor %}"
        "{% if add_generation_prompt %}assistant:" +
            prompt + "{% endif %}");
  };
  RowIssues issues;
  const std::string usual = thinking("");
  const Read read = read_chats(path, {}, &issues, usual);
  CHECK(read.rows.size() == 3);
  CHECK(read.counts.rewritten == 2);
  CHECK(read.counts.in_training_form == 0);
  CHECK(read.counts.how_rewritten.find("message 2 is written otherwise") != std::string::npos);
  CHECK(shown(read.rows[0]) ==
        "user:What is 0 and one?</s>assistant:\u27E6It is 1, I think.</s>\u27E7"
        "user:What is 1 and one?</s>assistant:\u27E6<think>It is 2, I think.</s>\u27E7");
  RowIssues strict(true);
  const auto refusal = [&](const std::string& name) {
    return error_of(ErrorCode::kInvalidArgument, [&] { read_chats(path, {}, &strict, name); });
  };
  CHECK(refusal(usual).find("c.jsonl:1: ") != std::string::npos);
  CHECK(refusal(usual).find("; train on the last answer alone (--train_on last), mark answers in "
                            "the template by {% generation %}, or leave out --strict_data") !=
        std::string::npos);
  const std::string never = thinking("<thought>");
  CHECK(refusal(never).find("--train_on last") == std::string::npos);
  CHECK(refusal(never).find("; mark answers in the template") != std::string::npos);
  CHECK(read_chats(path, {.train_on = TrainOn::kLast}, &issues, never).counts.rewritten == 3);
}

TEST_CASE("chats that cannot be used are refused with file, row and remedy") {
  const TempDir dir;
  const auto refusal = [&](const std::string& row, const std::string& name = "chatml") {
    const std::string path = dir.write("c.jsonl", chat_of(1) + row + "\n");
    const std::string message = error_of([&] { read_chats(path, {}, nullptr, name); });
    return message.starts_with(path) ? message.substr(path.size()) : message;
  };
  CHECK(
      refusal(R"({"messages":[{"role":"usr","content":"x"}]})") ==
      ":2: message 1 of \"messages\" has the role \"usr\"; write system, user, assistant or tool");
  CHECK(refusal(R"({"messages":[{"role":"user","content":"x"},{"role":"user","content":"y"}]})",
                "mistral")
            .find(":2: chat template mistral:") == 0);
  CHECK(refusal(R"({"messages":[{"role":"user","content":[{"type":"audio"}]}]})")
            .find(":2: message 1 of \"messages\" has a part of type \"audio\"") == 0);
  CHECK(refusal(R"({"messages":[{"role":"user","content":"x"}]})") ==
        ":2: no token is trained: the assistant says nothing; give the chat an answer or leave it "
        "out");
  CHECK(refusal("{\"messages\":").find(":2: ") == 0);
  CHECK(error_of(ErrorCode::kInvalidArgument, [&] {
          read_chats(dir.write("a.parquet", "PAR1"));
        }).find("scripts/parquet_to_jsonl.py") != std::string::npos);

  // A template's refusals are listed separately a few times, ignoring quoted parts of rows.
  std::string lines;
  for (int i = 0; i < 400; ++i) lines += chat_of(1);
  const auto say = [&](const std::string& text) {
    lines += R"({"messages":[{"role":"user","content":"x"},{"role":"assistant","content":"say )" +
             text + "\"}]}\n";
  };
  for (int i = 0; i < 3; ++i) say("'" + std::to_string(i) + " times'");
  for (const char* word : {"one", "two", "three", "four"}) say(word);
  const std::string picky = dir.write(
      "picky.jinja",
      "{% for m in messages %}{% if 'say' in m.content %}{{ raise_exception('not ' + m.content) }}"
      "{% endif %}{{ m.role + ':' + m.content + eos_token }}{% endfor %}"
      "{% if add_generation_prompt %}assistant:{% endif %}");
  RowIssues issues;
  CHECK(read_chats(dir.write("p.jsonl", lines), {}, &issues, picky).rows.size() == 400);
  REQUIRE(issues.kinds().size() == 4);
  CHECK(issues.kinds()[0].reason.ends_with("not say '0 times'"));
  CHECK(issues.kinds()[0].count == 3);
  CHECK(issues.kinds()[2].reason.ends_with("not say two"));
  CHECK(issues.kinds()[3].reason == "refused by the chat template");
  CHECK(issues.kinds()[3].count == 2);
}

TEST_CASE("what is wrong with a template ends the reading at the first row") {
  const TempDir dir;
  const std::string chats = dir.write("chats.jsonl", chat_of(1) + chat_of(2));
  const auto error_with = [&](const std::string& text, TrainOn train_on, bool strict = false) {
    RowIssues issues(strict);
    const std::string path = dir.write("own.jinja", text);
    return error_of(ErrorCode::kInvalidArgument,
                    [&] { read_chats(chats, {.train_on = train_on}, &issues, path); });
  };
  const std::string unlike =
      "{% for m in messages %}<|{{ m.role }}|>{% if loop.last %}!{% endif %}{{ m.content }}"
      "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}";
  CHECK(error_with(unlike, TrainOn::kAssistant, /*strict=*/true)
            .starts_with(chats + ":1: " + dir.path("own.jinja") +
                         ": the chat before message 2, with its generation prompt, does not begin "
                         "the whole chat"));
  CHECK(error_with("{% for m in messages %}\n{{ shout(m.content) }}{% endfor %}", TrainOn::kAll) ==
        chats + ":1: " + dir.path("own.jinja") + ":2: 'shout' is undefined");
}

TEST_CASE("items of an array are found wherever a piece of the file ends") {
  const TempDir dir;
  std::string text = "\n [";
  std::vector<std::string> wanted;
  while (text.size() < (size_t{9} << 20)) {
    const std::string n = std::to_string(wanted.size());
    wanted.push_back(R"({"a":"[,]}\" \\","b":[[1,2],{"c":)" + n + "}]}");
    text += (wanted.size() > 1 ? "," : "") + wanted.back();
  }
  std::vector<std::string> found;
  for_each_json_text(dir.write("a.json", text + "]\n\n"),
                     [&](std::string_view item, const std::string&) { found.emplace_back(item); });
  CHECK((found == wanted));
  const auto refusal = [&](const std::string& content) {
    const std::string path = dir.write("b.json", content);
    const std::string message =
        error_of([&] { for_each_json_text(path, [](std::string_view, const std::string&) {}); });
    return message.starts_with(path) ? message.substr(path.size()) : message;
  };
  CHECK(refusal("[]") == "no error");
  CHECK(refusal("[{}, {}") ==
        ": the array has no end; " + dir.path("b.json") + ": item 2 is the last one begun");
  CHECK(refusal("[{},]") == ": item 2: nothing stands beside a comma");
  CHECK(refusal("[{}] {}") == ": something stands behind the end of the array");
}
