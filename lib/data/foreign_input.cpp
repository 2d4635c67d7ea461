// SPDX-License-Identifier: MIT
#include "lib/data/foreign_input.h"

#include <algorithm>
#include <filesystem>

#include "lib/core/file.h"
#include "lib/core/printable.h"
#include "tessera/core/error.h"

namespace tessera {
namespace {

using std::string_view_literals::operator""sv;

struct Format {
  std::string_view start;
  const char* what;
};

constexpr const char* kParquet =
    "parquet is not read; scripts/parquet_to_jsonl.py FILE.parquet > FILE.jsonl writes its rows as "
    "JSON lines";
constexpr const char* kArrow =
    "Arrow and Feather files are not read; scripts/parquet_to_jsonl.py FILE.arrow > FILE.jsonl "
    "writes their rows as JSON lines";
constexpr const char* kPickle =
    "a pickle is never loaded, because it can run code; write its rows as JSON lines";

constexpr Format kFormats[] = {
    {"PAR1"sv, kParquet},
    {"ARROW1"sv, kArrow},
    {"FEA1"sv, kArrow},
    {"\xFF\xFF\xFF\xFF"sv, kArrow},  // an Arrow stream, the format of the datasets library
    {"\x1F\x8B"sv, "gzip data are not read; unpack the file: gunzip --keep FILE.gz"},
    {"BZh"sv, "bzip2 data are not read; unpack the file: bunzip2 --keep FILE.bz2"},
    {"\xFD\x37zXZ\0"sv, "xz data are not read; unpack the file: unxz --keep FILE.xz"},
    {"\x28\xB5\x2F\xFD"sv, "Zstandard data are not read; unpack the file: unzstd FILE.zst"},
    {"PK\x03\x04"sv,
     "a ZIP archive is not read (.zip, .xlsx, .npz, files of torch.save); unpack it, or write its "
     "rows as JSON lines"},
    {"GGUF"sv,
     "GGUF is not read; give the model's Hugging Face directory, with config.json and "
     "model.safetensors"},
    {"\x80\x02"sv, kPickle},
    {"\x80\x03"sv, kPickle},
    {"\x80\x04"sv, kPickle},
    {"\x80\x05"sv, kPickle},
    {"\x93NUMPY"sv, "a NumPy array is not read; write its rows as JSON lines with \"input_ids\""},
    {"\x89HDF"sv, "HDF5 is not read; write its rows as JSON lines"},
    {"SQLite format 3\0"sv, "an SQLite database is not read; write its rows as JSON lines"},
    {"MMIDIDX"sv,
     "Megatron's indexed data are not read; give text, or JSON lines with \"input_ids\" to "
     "--train_ids"},
    {"%PDF-"sv, "PDF is not read; write its text to a .txt file"},
    {"\xFF\xFE"sv, "UTF-16 is not read; iconv -f UTF-16 -t UTF-8 FILE > NEW converts it"},
    {"\xFE\xFF"sv, "UTF-16 is not read; iconv -f UTF-16 -t UTF-8 FILE > NEW converts it"}};

std::string extension_of(const std::string& path) {
  return std::filesystem::path(path).extension().string();
}

// "; the program that reads files of this name", if it is another one.
std::string reader_of_name(const std::string& path, DataReader reader) {
  const std::string extension = extension_of(path);
  if ((extension == ".csv" || extension == ".tsv") && reader != DataReader::kLabels) {
    return "; tessera-finetune-classification reads .csv and .tsv";
  }
  if (extension == ".txt" && reader != DataReader::kText) {
    return "; tessera-finetune-causal reads .txt";
  }
  if (extension == ".json" && reader == DataReader::kText) {
    return "; tessera-finetune-squad reads SQuAD's JSON, tessera-finetune-chat a JSON array of "
           "chats";
  }
  return "";
}

bool has_any(const Json& row, std::initializer_list<const char*> keys) {
  return std::ranges::any_of(keys, [&](const char* key) { return row.contains(key); });
}

bool is_chat(const Json& row) {
  return has_any(row, {"messages", "conversations"}) ||
         (row.contains("prompt") && row.contains("completion")) ||
         (row.contains("instruction") && has_any(row, {"output", "response"})) ||
         (row.contains("question") && row.contains("answer"));
}

}  // namespace

std::string start_of(const std::string& path, size_t most) {
  const RegularFile file(path);
  std::string start(std::min<uint64_t>(file.size(), most), '\0');
  file.read(0, start.data(), start.size());
  return start;
}

std::string foreign_format(std::string_view start) {
  for (const Format& format : kFormats) {
    if (start.starts_with(format.start)) return format.what;
  }
  return "";
}

void refuse_foreign_file(const std::string& path) {
  const std::string start = start_of(path);
  refuse_lfs_pointer(start, path);
  std::string what = foreign_format(start);
  if (what.empty() && extension_of(path) == ".parquet") what = kParquet;
  check(what.empty(), ErrorCode::kInvalidArgument, path, ": ", what);
}

std::string expected_names(const std::string& path, DataReader reader) {
  return concat(": expected a file named ",
                reader == DataReader::kText ? ".txt or .jsonl" : ".csv, .tsv, .jsonl or .json",
                reader_of_name(path, reader));
}

void refuse_table_or_text(const std::string& path, DataReader reader) {
  const std::string other = reader_of_name(path, reader);
  if (other.empty()) return;
  const std::string start = start_of(path);
  const size_t first = start.find_first_not_of(" \t\r\n");
  const bool json = first == start.npos || start[first] == '{' || start[first] == '[';
  check(json, ErrorCode::kInvalidArgument, path, ": this program reads JSON", other);
}

std::string keys_of(const Json& row) {
  constexpr size_t kMost = 10, kLongest = 40;
  if (!row.is_object())
    return concat("the row is no object, but of type ", json_type_name(row.type()));
  std::string text;
  size_t count = 0;
  for (const auto& [name, value] : row.members()) {
    if (++count > kMost) return concat("the row's keys are ", text, ", ...");
    std::string shown = name.substr(0, kLongest);
    shown.resize(utf8_valid_prefix(shown));
    text +=
        concat(text.empty() ? "" : ", ", printable(shown), shown.size() < name.size() ? "..." : "");
  }
  return count == 0 ? "the row has no keys" : concat("the row's keys are ", text);
}

std::string other_reader(const Json& row, DataReader reader) {
  if (!row.is_object()) return "";
  if (row.contains("input_ids") && reader != DataReader::kIds) {
    return "; --train_ids takes rows of tokens";
  }
  if (row.contains("chosen") && row.contains("rejected") && !is_chat(row)) {
    return "; preference data are not trained by tessera";
  }
  if (row.contains("context") && row.contains("question") && row.contains("answers")) {
    return "; docs/guides/data.md has a script that makes a SQuAD file of such rows, for "
           "tessera-finetune-squad";
  }
  if (is_chat(row))
    return reader == DataReader::kChats ? "" : "; tessera-finetune-chat trains chats";
  if (row.contains("data") && reader != DataReader::kSquad) {
    return "; tessera-finetune-squad reads SQuAD";
  }
  if (!has_any(row, {"text", "content"})) return "";
  if (has_any(row, {"label", "labels", "class", "category"})) {
    return reader == DataReader::kLabels
               ? ""
               : "; tessera-finetune-classification trains texts with labels";
  }
  return reader == DataReader::kText ? "" : "; tessera-finetune-causal trains texts";
}

}  // namespace tessera
