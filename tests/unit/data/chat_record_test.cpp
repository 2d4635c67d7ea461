// SPDX-License-Identifier: MIT
#include "tessera/data/chat_record.h"

#include "tests/support/test.hpp"

using namespace tessera;

namespace {

ChatRecord read(const std::string& text) { return read_chat_record(Json::parse(text, {}, "row")); }

std::string messages(const std::string& text) { return read(text).messages.dump(); }

// "reason: sentence"
std::string refused(const std::string& text) {
  try {
    read(text);
  } catch (const ChatRecordError& error) {
    CHECK(error.code() == ErrorCode::kDataLoss);
    return error.reason() + ": " + error.what();
  }
  return "accepted";
}

}  // namespace

TEST_CASE("records of every form become messages") {
  const std::string two = R"([{"role":"user","content":"q"},{"role":"assistant","content":"a"}])";
  CHECK(messages(R"({"messages":)" + two + "}") == two);
  CHECK(messages(R"({"prompt":"q","completion":"a"})") == two);
  CHECK(
      messages(
          R"({"prompt":[{"role":"user","content":"q"}],"completion":[{"role":"assistant","content":"a"}]})") ==
      two);
  CHECK(messages(R"({"instruction":"q","input":"","output":"a"})") == two);
  CHECK(messages(R"({"instruction":"q","output":"a"})") == two);
  CHECK(messages(R"({"instruction":"q","input":"i","output":"a"})") ==
        R"([{"role":"user","content":"q\n\ni"},{"role":"assistant","content":"a"}])");
  CHECK(
      messages(R"({"conversations":[{"from":"human","value":"q"},{"from":"gpt","value":"a"}]})") ==
      two);
  CHECK(
      messages(
          R"({"conversations":[{"role":"user","content":"q"},{"role":"assistant","content":"a"}]})") ==
      two);
  CHECK(
      messages(
          R"({"system":"s","conversations":[{"from":"human","value":"q"},{"from":"observation","value":"o"}]})") ==
      R"([{"role":"system","content":"s"},{"role":"user","content":"q"},{"role":"tool","content":"o"}])");
  CHECK(messages(R"({"system":"","instruction":"q","output":"a"})") == two);
  const auto form = [](const std::string& text) {
    return std::string(chat_form_name(read(text).form));
  };
  CHECK(form(R"({"messages":)" + two + "}") == "messages");
  CHECK(form(R"({"prompt":"q","completion":"a"})") == "prompt and completion");
  CHECK(form(R"({"instruction":"q","output":"a"})") == "instruction, input and output");
  CHECK(form(R"({"conversations":[{"from":"human","value":"q"}]})") == "conversations");
}

TEST_CASE("Dolly's rows, questions with answers and parts of text become messages") {
  struct Row {
    const char* text;
    const char* user;
    const char* form;
  };
  const Row rows[] = {
      {R"({"instruction":"q","context":"","response":"a","category":"open_qa"})", "q",
       "instruction, context and response"},
      {R"({"instruction":"q","context":"c","response":"a"})", "q\\n\\nc",
       "instruction, context and response"},
      {R"({"instruction":"q","response":"a"})", "q", "instruction, context and response"},
      {R"({"instruction":"q","input":"i","response":"a"})", "q\\n\\ni",
       "instruction, context and response"},
      {R"({"instruction":"q","context":"c","output":"a"})", "q", "instruction, input and output"},
      {R"({"question":"q","answer":"a"})", "q", "question and answer"},
      {R"({"question":"q","context":"c","answer":"a"})", "q\\n\\nc", "question and answer"},
      {R"({"prompt":"q","completion":"a","question":"x","answer":"y"})", "q",
       "prompt and completion"},
      {R"({"messages":[{"role":"user","content":[{"type":"text","text":"q"},{"type":"text","text":"r","image_url":null}]},{"role":"assistant","content":[{"type":"text","text":"a"}]}]})",
       "qr", "messages"},
      {R"({"conversations":[{"from":"human","value":[{"type":"text","text":"q"}]},{"from":"gpt","value":"a"}]})",
       "q", "conversations"}};
  for (const Row& row : rows) {
    INFO(row.text);
    CHECK(messages(row.text) == concat(R"([{"role":"user","content":")", row.user,
                                       R"("},{"role":"assistant","content":"a"}])"));
    CHECK(std::string(chat_form_name(read(row.text).form)) == row.form);
  }
}

TEST_CASE("messages of a prompt are told from those of its completion") {
  CHECK(read(R"({"prompt":"q","completion":"a"})").prompt == 1);
  CHECK(read(R"({"system":"s","prompt":"q","completion":"a"})").prompt == 2);
  const std::string two = R"([{"role":"user","content":"q"},{"role":"assistant","content":"a"}])";
  CHECK(read(R"({"prompt":)" + two + R"(,"completion":)" + two + "}").prompt == 2);
  CHECK(read(R"({"messages":)" + two + "}").prompt == 0);
  CHECK(read(R"({"instruction":"q","output":"a"})").prompt == 0);
}

TEST_CASE("tools and calls of them stay as they are") {
  const std::string calls =
      R"([{"role":"assistant","content":null,"tool_calls":[{"name":"f","arguments":{"x":1.5}}]},{"role":"tool","content":""}])";
  const ChatRecord record = read(R"({"messages":)" + calls + R"(,"tools":[{"name":"f"}]})");
  CHECK(record.messages.dump() == calls);
  CHECK(record.tools->dump() == R"([{"name":"f"}])");
  CHECK(read(R"({"messages":)" + calls + R"(,"tools":"[{\"name\":\"f\"}]"})").tools->dump() ==
        R"([{"name":"f"}])");
  CHECK(!read(R"({"messages":)" + calls + R"(,"tools":[]})").tools);
  CHECK(refused(R"({"messages":)" + calls + R"(,"tools":"f"})") ==
        "tools of no list: \"tools\" is no list; write the tools as a JSON array");
}

TEST_CASE("a record that cannot be used says why and what to do") {
  CHECK(refused("5") == "no object: the row is no JSON object; write one object a line");
  CHECK(refused(R"({"text":"x"})") ==
        "no chat: the row has the keys of no form (messages; prompt and completion; instruction, "
        "input and output; conversations; instruction, context and response; question and answer), "
        "rename its columns; the row's keys are text; tessera-finetune-causal trains texts");
  CHECK(refused(R"({"messages":5})") == "no list of messages: \"messages\" is no list of messages");
  CHECK(refused(R"({"messages":[]})") ==
        "no messages: the chat has no messages; leave the row out");
  CHECK(refused(R"({"messages":[5]})") ==
        "no message: message 1 of \"messages\" is no object with role and content");
  CHECK(refused(R"({"messages":[{"content":"x"}]})") ==
        "no role: message 1 of \"messages\" has no role; give it \"role\": system, user, assistant "
        "or tool");
  CHECK(refused(R"({"messages":[{"role":"user","content":"x"},{"role":"human","content":"x"}]})") ==
        "unknown role: message 2 of \"messages\" has the role \"human\"; write system, user, "
        "assistant or tool");
  CHECK(refused(R"({"messages":[{"role":5,"content":"x"}]})") ==
        "role of no text: message 1 of \"messages\" has a role that is no text");
  CHECK(refused(R"({"messages":[{"role":"user"}]})") ==
        "no content: message 1 of \"messages\" has no \"content\"; give it a text or leave the row "
        "out");
  CHECK(
      refused(R"({"messages":[{"role":"assistant","content":""}]})") ==
      "empty content: message 1 of \"messages\" says nothing; give it a text or leave the row out");
  CHECK(refused(R"({"messages":[{"role":"user","content":[{"type":"image_url"}]}]})") ==
        "content that is not only text: message 1 of \"messages\" has a part of type "
        "\"image_url\"; only text is trained: remove the part, or leave the row out");
  CHECK(refused(R"({"messages":[{"role":"user","content":["x"]}]})") ==
        "content of no text: message 1 of \"messages\" has a part that is no {\"type\": \"text\", "
        "\"text\": \"...\"}");
  CHECK(refused(R"({"messages":[{"role":"user","content":[]}]})").starts_with("empty content: "));
  CHECK(refused(R"({"messages":[{"role":"user","content":{}}]})")
            .starts_with("content of no text: "));
  CHECK(refused(R"({"messages":[{"role":"user","content":5}]})") ==
        "content of no text: message 1 of \"messages\" has content that is no text; write it in "
        "quotation marks");
  CHECK(
      refused(R"({"conversations":[{"from":"alien","value":"x"}]})").starts_with("unknown role: "));
  CHECK(
      refused(R"({"conversations":[{"from":"human","value":""}]})").starts_with("empty content: "));
  CHECK(refused(R"({"prompt":"x"})") ==
        "no completion: the row has a \"prompt\" but no \"completion\"; the row's keys are prompt");
  CHECK(refused(R"({"prompt":"x","completion":""})") ==
        "empty content: \"completion\" says nothing; give it a text or leave the row out");
  CHECK(refused(R"({"prompt":5,"completion":"x"})") ==
        "content of no text: \"prompt\" is no text; write it in quotation marks");
  CHECK(refused(R"({"instruction":"x"})") ==
        "no output: the row has an \"instruction\" but neither \"output\" nor \"response\"; the "
        "row's keys are instruction");
  CHECK(refused(R"({"instruction":"x","input":5,"output":"y"})") ==
        "content of no text: \"input\" is no text");
  const std::string preference =
      "preference data: preference data (\"chosen\", \"rejected\") are not trained by tessera; to "
      "train the chosen answers, write them as \"completion\" beside \"prompt\", or as "
      "\"messages\"";
  CHECK(refused(R"({"prompt":"q","chosen":"a","rejected":"b"})") == preference);
  CHECK(refused(R"({"chosen":[],"rejected":[]})") == preference);
  CHECK(refused(R"({"question":"q","answer":3})") ==
        "content of no text: \"answer\" is no text; write it in quotation marks");
}
