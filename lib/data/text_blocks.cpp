#include "tessera/data/text_blocks.h"

#include <filesystem>

#include "lib/data/lines.h"
#include "tessera/core/error.h"
#include "tessera/core/file.h"
#include "tessera/core/json.h"

namespace tessera {
namespace {

// Cuts a stream of tokens.
class Cutter {
 public:
  Cutter(size_t size, std::vector<Example>& blocks) : size_(size), blocks_(blocks) {}

  void add(int32_t id) {
    block_.push_back(id);
    if (block_.size() < size_) return;
    blocks_.push_back({block_, block_, {}});
    block_.clear();
  }
  int64_t rest() const { return static_cast<int64_t>(block_.size()); }

 private:
  size_t size_;
  std::vector<Example>& blocks_;
  std::vector<int32_t> block_;
};

}  // namespace

TextBlocks read_text_blocks(const std::string& path, const Tokenizer& tokenizer,
                            const TextBlockOptions& options, RowIssues* issues) {
  const auto end_token = tokenizer.eos_id();
  check(end_token.has_value(), ErrorCode::kDataLoss, tokenizer.origin(),
        ": no end token; name eos_token in tokenizer_config.json");
  const std::string extension = std::filesystem::path(path).extension().string();
  check(extension == ".txt" || extension == ".jsonl", ErrorCode::kInvalidArgument, path,
        ": expected a file named .txt or .jsonl");
  TextBlocks result;
  Cutter cutter(static_cast<size_t>(options.block_size), result.dataset.examples);
  int64_t rows = 0;
  const auto add = [&](const std::string& text, const std::string& where) {
    ++rows;
    if (text.find_first_not_of(" \t\r\n") == text.npos) {
      return skip_row(issues, "empty text", where, "the text is empty");
    }
    ++result.documents;
    const std::vector<int32_t> ids = tokenizer.encode(text);
    for (const int32_t id : ids) cutter.add(id);
    if (ids.empty() || ids.back() != *end_token) cutter.add(*end_token);
  };
  if (extension == ".txt") {
    std::string text = read_file(path);
    check_utf8(text, path);
    if (text.starts_with("\xEF\xBB\xBF")) text.erase(0, 3);  // byte-order mark
    add(text, path);
  } else {
    bool found = false;
    for_each_json_line(path, [&](const Json& row, int64_t line) {
      const auto text = row.find(options.text_column);
      found = found || row.contains(options.text_column);
      add(text ? text->as_string() : "", concat(path, ":", line));
    });
    check(rows == 0 || found, ErrorCode::kInvalidArgument, path, ": no row has ",
          options.text_column, "; use --text_column NAME");
  }
  if (issues) {
    issues->add_rows(rows);
    issues->check_share(path);
  }
  result.dropped_tokens = cutter.rest();
  check(result.dataset.size() > 0, ErrorCode::kDataLoss, path, ": ", cutter.rest(),
        " tokens, less than one block of --max_seq_length ", options.block_size);
  return result;
}

}  // namespace tessera
