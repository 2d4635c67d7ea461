// SPDX-License-Identifier: MIT
// Messages of readers for unsupported inputs.
#include "lib/data/foreign_input.h"

#include "tessera/data/chat_examples.h"
#include "tessera/data/classification.h"
#include "tessera/data/squad.h"
#include "tessera/data/text_blocks.h"
#include "tessera/data/token_rows.h"
#include "tests/support/messages.hpp"
#include "tests/support/temp_dir.hpp"
#include "tests/support/test.hpp"
#include "tests/unit/data/sample_paths.hpp"

using namespace tessera;

namespace {

const Tokenizer& tokenizer() {
  static const Tokenizer loaded = Tokenizer::load(sample_tokenizer());
  return loaded;
}

void read_by(DataReader reader, const std::string& path) {
  const ChatTemplate chatml = ChatTemplate::choose("chatml", sample_tokenizer());
  RowIssues issues;
  const auto take = [](const Example&) {};
  switch (reader) {
    case DataReader::kChats:
      for_each_chat_example(path, tokenizer(), chatml, {}, &issues, take);
      return;
    case DataReader::kText:
      for_each_text_block(path, tokenizer(), {4, "text"}, &issues, take);
      return;
    case DataReader::kLabels:
      read_labelled_texts(path, {}, &issues);
      return;
    case DataReader::kSquad:
      read_squad(path, &issues);
      return;
    case DataReader::kIds:
      read_token_rows(path, {}, &issues);
      return;
  }
}

// The message without the file name.
std::string said(DataReader reader, const std::string& path) {
  try {
    read_by(reader, path);
  } catch (const Error& error) {
    return error.what();
  }
  return "accepted";
}

}  // namespace

TEST_CASE("every reader of data names a foreign format by its first bytes") {
  const std::pair<std::string, const char*> formats[] = {
      {"PAR1", "parquet is not read; scripts/parquet_to_jsonl.py"},
      {std::string("ARROW1\0\0", 8), "Arrow and Feather files are not read; scripts/"},
      {"\xFF\xFF\xFF\xFF\x10", "Arrow and Feather files are not read; scripts/"},
      {"\x1F\x8B\x08", "gzip data are not read; unpack the file: gunzip --keep"},
      {"BZh9", "bunzip2 --keep"},
      {std::string("\xFD\x37zXZ\0", 6), "unxz --keep"},
      {"\x28\xB5\x2F\xFD", "unzstd"},
      {"PK\x03\x04", "a ZIP archive is not read"},
      {"GGUF\x03", "GGUF is not read; give the model's Hugging Face directory"},
      {"\x80\x04\x95", "a pickle is never loaded, because it can run code"},
      {"\x93NUMPY", "a NumPy array is not read"},
      {"\x89HDF\r\n", "HDF5 is not read"},
      {std::string("SQLite format 3\0", 16), "an SQLite database is not read"},
      {"MMIDIDX", "Megatron's indexed data are not read"},
      {"%PDF-1.7", "PDF is not read"},
      {std::string("\xFF\xFE{\0", 4), "UTF-16 is not read; iconv"}};
  const std::pair<DataReader, const char*> readers[] = {
      {DataReader::kChats, "a.jsonl"},   {DataReader::kText, "a.txt"},
      {DataReader::kText, "a.jsonl.gz"}, {DataReader::kLabels, "a.csv"},
      {DataReader::kLabels, "a.jsonl"},  {DataReader::kSquad, "a.json"},
      {DataReader::kIds, "a.jsonl"}};
  const TempDir dir;
  for (const auto& [bytes, what] : formats) {
    for (const auto& [reader, name] : readers) {
      const std::string path = dir.write(name, bytes + "\n more bytes");
      INFO(name << " " << what);
      const std::string message =
          error_of(ErrorCode::kInvalidArgument, [&, &of = reader] { read_by(of, path); });
      CHECK(message.starts_with(path + ": "));
      CHECK(message.find(what) != std::string::npos);
    }
  }
  CHECK(foreign_format("{\"a\": 1}").empty());
  CHECK(foreign_format("").empty());
  CHECK(foreign_format("PA").empty());
}

TEST_CASE("rows and files of another program name their keys and that program") {
  struct Case {
    DataReader reader;
    const char *name, *content;
    std::vector<std::string> pieces;
  };
  const char* chat = R"({"messages":[{"role":"user","content":"q"}]})";
  const std::string two_chats = concat(chat, "\n", chat, "\n"), list = concat("[", chat, "]");
  const std::vector<Case> cases = {
      {DataReader::kChats,
       "a.jsonl",
       "{\"text\":\"x\"}",
       {"no chat (1)", "a.jsonl:1: ", "question and answer)", "keys are text;",
        "-causal trains texts"}},
      {DataReader::kChats, "a.jsonl", "{\"input_ids\":[1]}", {"--train_ids takes rows of tokens"}},
      {DataReader::kChats,
       "a.jsonl",
       R"({"question":"q","context":"c","answers":{}})",
       {"keys are question, context, answers", "docs/guides/data.md"}},
      {DataReader::kChats,
       "a.jsonl",
       R"({"prompt":"q","chosen":"a","rejected":"b"})",
       {"preference data (1)", "are not trained by tessera"}},
      {DataReader::kChats, "a.csv", "text,label\n", {"reads JSON", "-classification reads .csv"}},
      {DataReader::kText,
       "a.jsonl",
       two_chats.c_str(),
       {"no row has text; ", "keys are messages", "tessera-finetune-chat trains chats"}},
      {DataReader::kText,
       "a.jsonl",
       R"({"id":1,"body":"x"})",
       {"keys are id, body", "--text_column NAME"}},
      {DataReader::kText, "a.csv", "text,label\n", {".txt or .jsonl; tessera-finetune-class"}},
      {DataReader::kText, "a.json", "{}", {"tessera-finetune-squad", "tessera-finetune-chat"}},
      {DataReader::kLabels,
       "a.jsonl",
       two_chats.c_str(),
       {"no row has label", "keys are messages", "tessera-finetune-chat trains chats"}},
      {DataReader::kLabels, "a.txt", "text", {"tessera-finetune-causal reads .txt"}},
      {DataReader::kSquad,
       "a.json",
       two_chats.c_str(),
       {"JSON lines, but SQuAD is one object", "messages", "tessera-finetune-chat trains chats"}},
      {DataReader::kSquad, "a.json", list.c_str(), {"an array, but SQuAD", "-finetune-chat"}},
      {DataReader::kSquad, "a.json", "{\n\"version\": 2}", {"an object, but", "keys are version"}},
      {DataReader::kIds,
       "a.jsonl",
       two_chats.c_str(),
       {"has no \"input_ids\"; the row's keys are messages; tessera-finetune-chat trains chats"}},
      {DataReader::kSquad, "a.csv", "text;label\n", {"-classification reads .csv and .tsv"}},
  };
  const TempDir dir;
  for (const Case& row : cases) {
    const std::string message = said(row.reader, dir.write(row.name, row.content));
    INFO(row.name << ": " << row.content << ": " << message);
    for (const std::string& piece : row.pieces) CHECK(message.find(piece) != std::string::npos);
  }
}

TEST_CASE("keys are shown in one short line that a terminal obeys nothing of") {
  const auto keys = [](const std::string& text) { return keys_of(Json::parse(text, {}, "row")); };
  CHECK(keys("{}") == "the row has no keys");
  CHECK(keys("[1]") == "the row is no object, but of type array");
  CHECK(keys(R"({"a\u001b[2J":1,"b":2})") == "the row's keys are a\\x1b[2J, b");
  CHECK(keys("{\"" + std::string(50, 'k') + "\":1}") ==
        "the row's keys are " + std::string(40, 'k') + "...");
  std::string many;
  for (int i = 0; i < 12; ++i) many += concat(i > 0 ? "," : "", "\"k", i, "\":0");
  CHECK(keys("{" + many + "}") == "the row's keys are k0, k1, k2, k3, k4, k5, k6, k7, k8, k9, ...");
}
