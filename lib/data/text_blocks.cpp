// SPDX-License-Identifier: MIT
#include "tessera/data/text_blocks.h"

#include <filesystem>
#include <string_view>
#include <utility>

#include "lib/core/file.h"
#include "lib/data/foreign_input.h"
#include "lib/data/in_order.h"
#include "lib/data/lines.h"
#include "tessera/core/error.h"
#include "tessera/core/json.h"

namespace tessera {
namespace {

constexpr size_t kPiecesAtOnce = 8;                   // pieces of a .txt file, about 4 MiB each
constexpr size_t kDocumentsAtOnce = size_t{8} << 20;  // bytes

bool is_blank(std::string_view text) { return text.find_first_not_of(" \t\r\n") == text.npos; }

bool is_word(char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

// Last position at which Tokenizer::cuts_at_lines() allows a cut; 0: none.
size_t last_cut(std::string_view text) {
  for (size_t at = text.size(); at-- > 2;) {
    if (text[at - 1] == '\n' && is_word(text[at]) &&
        (is_word(text[at - 2]) || std::string_view(".,;:!?)\"").find(text[at - 2]) != text.npos)) {
      return at;
    }
  }
  return 0;
}

class BlockReader {
 public:
  BlockReader(const std::string& path, const Tokenizer& tokenizer, const TextBlockOptions& options,
              RowIssues* issues, const std::function<void(const Example&)>& take)
      : path_(path), tokenizer_(tokenizer), options_(options), issues_(issues), take_(take) {
    check(tokenizer.eos_id().has_value(), ErrorCode::kDataLoss, tokenizer.origin(),
          ": no end token; name eos_token in tokenizer_config.json");
  }

  TextCounts read() {
    const std::string extension = std::filesystem::path(path_).extension().string();
    refuse_foreign_file(path_);
    check(extension == ".txt" || extension == ".jsonl", ErrorCode::kInvalidArgument, path_,
          expected_names(path_, DataReader::kText));
    extension == ".txt" ? read_document() : read_lines();
    if (issues_) {
      issues_->add_rows(rows_);
      issues_->check_share(path_);
    }
    counts_.dropped_tokens = static_cast<int64_t>(block_.input_ids.size());
    check(counts_.blocks > 0, ErrorCode::kDataLoss, path_, ": ", counts_.dropped_tokens,
          " tokens, less than one block of --max_seq_length ", options_.block_size);
    return counts_;
  }

 private:
  struct Piece {
    std::string text;
    uint64_t begin = 0;  // byte offset in the file
    bool first = false, last = false;
  };

  void read_document() {
    std::vector<Piece> pieces;
    Piece rest{.first = true};
    const auto flush = [&] {
      in_order(
          static_cast<int64_t>(pieces.size()),
          [&](int64_t i) { return ids_of(pieces[static_cast<size_t>(i)]); },
          [&](int64_t, const std::vector<int32_t>& ids) { add(ids); }, /*share_size=*/1);
      pieces.clear();
    };
    const auto take = [&](std::string_view piece) {
      rest.text += piece;
      const size_t cut = tokenizer_.cuts_at_lines() ? last_cut(rest.text) : 0;
      if (cut == 0) return;
      Piece next{rest.text.substr(cut), rest.begin + cut};
      rest.text.resize(cut);
      pieces.push_back(std::exchange(rest, std::move(next)));
      if (pieces.size() == kPiecesAtOnce) flush();
    };
    for_each_piece(path_, take, options_.progress);
    ++rows_;
    if (rest.first && is_blank(rest.text)) {
      return skip_row(issues_, "empty text", path_, "the text is empty");
    }
    rest.last = true;
    pieces.push_back(std::move(rest));
    flush();
    ++counts_.documents;
    end_document();
  }

  // Adds the template's tokens before the first piece and after the last.
  std::vector<int32_t> ids_of(const Piece& piece) const {
    std::string_view text = piece.text;
    const size_t valid = utf8_valid_prefix(text);
    check(valid == text.size(), ErrorCode::kDataLoss, path_, ": byte ", piece.begin + valid,
          ": not valid UTF-8; convert the file to UTF-8");
    if (piece.first && text.starts_with("\xEF\xBB\xBF")) text.remove_prefix(3);  // byte-order mark
    if (!piece.first && !piece.last) return tokenizer_.encode(text, /*add_special_tokens=*/false);
    std::vector<int32_t> ids;
    for (const Token& token : tokenizer_.encode_with_offsets(text)) {
      const bool added = token.begin == token.end;
      const bool here = token.begin == 0 ? piece.first : piece.last;
      if (!added || here) ids.push_back(token.id);
    }
    return ids;
  }

  void read_lines() {
    bool found = false;
    std::string first_keys;
    std::vector<std::string> documents;
    size_t bytes = 0;
    const auto flush = [&] {
      in_order(
          static_cast<int64_t>(documents.size()),
          [&](int64_t i) { return tokenizer_.encode(documents[static_cast<size_t>(i)]); },
          [&](int64_t, const std::vector<int32_t>& ids) {
            add(ids);
            end_document();
          },
          /*share_size=*/8);
      documents.clear();
      bytes = 0;
    };
    const auto take = [&](const Json& row, int64_t line) {
      ++rows_;
      const auto text = row.find(options_.text_column);
      const bool here = row.contains(options_.text_column);
      found = found || here;
      if (rows_ == 1) first_keys = keys_of(row) + other_reader(row, DataReader::kText);
      std::string document = text ? text->as_string() : "";
      if (is_blank(document)) {
        return skip_row(
            issues_, "empty text", concat(path_, ":", line),
            here ? "the text is empty"
                 : concat("no ", options_.text_column, "; ", keys_of(row),
                          other_reader(row, DataReader::kText), "; use --text_column NAME"));
      }
      ++counts_.documents;
      bytes += document.size();
      documents.push_back(std::move(document));
      if (bytes >= kDocumentsAtOnce) flush();
    };
    for_each_json_line(path_, take, options_.progress);
    flush();
    check(rows_ == 0 || found, ErrorCode::kInvalidArgument, path_, ": no row has ",
          options_.text_column, "; of the first, ", first_keys, "; use --text_column NAME");
  }

  void add(const std::vector<int32_t>& ids) {
    for (const int32_t id : ids) add(id);
  }

  void add(int32_t id) {
    last_id_ = id;
    block_.input_ids.push_back(id);
    if (static_cast<int64_t>(block_.input_ids.size()) < options_.block_size) return;
    block_.labels = block_.input_ids;
    take_(block_);
    ++counts_.blocks;
    block_.input_ids.clear();
  }

  void end_document() {
    if (last_id_ != *tokenizer_.eos_id()) add(*tokenizer_.eos_id());
    last_id_ = -1;
  }

  const std::string& path_;
  const Tokenizer& tokenizer_;
  const TextBlockOptions& options_;
  RowIssues* issues_;
  const std::function<void(const Example&)>& take_;
  TextCounts counts_;
  Example block_;
  int64_t rows_ = 0;
  int32_t last_id_ = -1;  // of the document
};

}  // namespace

TextCounts for_each_text_block(const std::string& path, const Tokenizer& tokenizer,
                               const TextBlockOptions& options, RowIssues* issues,
                               const std::function<void(const Example&)>& take) {
  return BlockReader(path, tokenizer, options, issues, take).read();
}

}  // namespace tessera
