// SPDX-License-Identifier: MIT
#include "tessera/data/tokenizer.h"

#include "lib/core/file.h"
#include "lib/data/tokenizer_tables.h"
#include "lib/data/unicode.h"
#include "tessera/core/error.h"

namespace tessera {

// Appends the tokens of one text.
class Tokenizer::Encoder {
 public:
  Encoder(const Tables& tables, std::string_view text, std::vector<Token>& tokens)
      : tables_(tables), text_(text), tokens_(tokens) {}

  void encode() {
    tables_.added.split(text_, 0, text_.size(), [&](const AddedTokenSet::Part& part) {
      if (part.id >= 0) return found(part);
      const auto made = tables_.normalizer.apply(text_, part.begin, part.end);
      if (!made) return normalized(text_, part.begin, part.end, part.begin == 0);
      const size_t first = tokens_.size();
      normalized(made->text, 0, made->text.size(), part.begin == 0);
      move_back(first, made->origin);
    });
  }

 private:
  void found(const AddedTokenSet::Part& part) {
    tokens_.push_back({part.id, part.begin, part.end});
  }

  void move_back(size_t first_token, const std::vector<size_t>& origin) {
    for (size_t i = first_token; i < tokens_.size(); ++i) {
      tokens_[i].begin = origin[tokens_[i].begin];
      tokens_[i].end = origin[tokens_[i].end];
    }
  }

  // first: at the start of the whole text.
  void normalized(std::string_view text, size_t begin, size_t end, bool first) {
    tables_.added_normalized.split(text, begin, end, [&](const AddedTokenSet::Part& part) {
      part.id >= 0 ? found(part) : plain(text, part.begin, part.end, first && part.begin == begin);
    });
  }

  void plain(std::string_view text, size_t begin, size_t end, bool first) {
    if (tables_.byte_level) {
      return split_pieces(tables_.pre_tokenizer, text.substr(begin, end - begin),
                          [&](std::string_view part) {
                            piece(part, static_cast<size_t>(part.data() - text.data()));
                          });
    }
    if (!tables_.metaspace) return piece(text.substr(begin, end - begin), begin);
    const size_t first_token = tokens_.size();
    const NormalizedText spaced = with_metaspaces(text, begin, end, first, *tables_.metaspace);
    const std::string_view all = spaced.text;
    split_at_metaspaces(all, 0, all.size(), tables_.metaspace->split,
                        [&](size_t from, size_t to) { piece(all.substr(from, to - from), from); });
    move_back(first_token, spaced.origin);
  }

  void piece(std::string_view part, size_t offset) {
    const auto whole = tables_.whole_pieces.find(absl::string_view(part.data(), part.size()));
    if (whole != tables_.whole_pieces.end()) {
      tokens_.push_back({whole->second, offset, offset + part.size()});
    } else {
      tables_.bpe->encode(part, offset, tokens_);
    }
  }

  const Tables& tables_;
  std::string_view text_;
  std::vector<Token>& tokens_;
};

std::vector<Token> Tokenizer::encode_with_offsets(std::string_view text,
                                                  bool add_special_tokens) const {
  check_utf8(text, "text to be tokenised");
  std::vector<Token> tokens;
  if (add_special_tokens) {
    for (const int32_t id : tables_->prefix) tokens.push_back({id, 0, 0});
  }
  Encoder(*tables_, text, tokens).encode();
  if (add_special_tokens) {
    for (const int32_t id : tables_->suffix) tokens.push_back({id, text.size(), text.size()});
  }
  return tokens;
}

std::vector<int32_t> Tokenizer::encode(std::string_view text, bool add_special_tokens) const {
  std::vector<int32_t> ids;
  for (const Token& token : encode_with_offsets(text, add_special_tokens)) ids.push_back(token.id);
  return ids;
}

std::string Tokenizer::decode(std::span<const int32_t> ids, bool skip_special_tokens) const {
  std::string text;
  size_t run = 0;  // fallback bytes at the end of `text`
  const auto end_run = [&] {
    // Each byte of an invalid UTF-8 run becomes U+FFFD.
    const std::string_view bytes = std::string_view(text).substr(text.size() - run);
    if (utf8_valid_prefix(bytes) < run) {
      text.resize(text.size() - run);
      for (; run > 0; --run) text += "\xEF\xBF\xBD";
    }
    run = 0;
  };
  for (size_t i = 0; i < ids.size(); ++i) {
    check(ids[i] >= 0 && ids[i] < size(), ErrorCode::kDataLoss, "token ", i, ": id ", ids[i],
          " is outside the vocabulary 0..", size() - 1, " of ", origin());
    const auto id = static_cast<size_t>(ids[i]);
    if (skip_special_tokens && tables_->special[id]) continue;
    if (!tables_->is_byte[id]) end_run();
    text += tables_->bytes[id];
    run += tables_->is_byte[id] ? 1 : 0;
  }
  end_run();
  if (tables_->byte_level) return replace_invalid_utf8(text);
  return tables_->strip_first_space && text.starts_with(' ') ? text.substr(1) : text;
}

int64_t Tokenizer::size() const { return static_cast<int64_t>(tables_->bytes.size()); }

std::optional<int32_t> Tokenizer::bos_id() const { return tables_->bos; }
std::optional<int32_t> Tokenizer::eos_id() const { return tables_->eos; }
std::optional<int32_t> Tokenizer::pad_id() const { return tables_->pad; }
std::optional<int32_t> Tokenizer::unk_id() const { return tables_->unk; }
bool Tokenizer::cuts_at_lines() const {
  return tables_->byte_level && tables_->normalizer.only_composes();
}
const std::string& Tokenizer::origin() const { return tables_->origin; }

}  // namespace tessera
