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
      if (part.id >= 0) {
        found(part);
      } else if (tables_.metaspace && tables_.metaspace->normalizes) {
        normalized(part);
      } else {
        tables_.added_normalized.split(
            text_, part.begin, part.end, [&](const AddedTokenSet::Part& inner) {
              inner.id >= 0 ? found(inner) : plain(inner.begin, inner.end);
            });
      }
    });
  }

 private:
  void found(const AddedTokenSet::Part& part) {
    tokens_.push_back({part.id, part.begin, part.end});
  }

  void plain(size_t begin, size_t end) {
    if (tables_.metaspace) {
      const SpacedText spaced = with_metaspaces(text_, begin, end, *tables_.metaspace);
      return merge(spaced, 0, spaced.text.size());
    }
    split_pieces(tables_.pre_tokenizer, text_.substr(begin, end - begin),
                 [&](std::string_view piece) {
                   const size_t offset = static_cast<size_t>(piece.data() - text_.data());
                   const auto whole =
                       tables_.whole_pieces.find(absl::string_view(piece.data(), piece.size()));
                   if (whole != tables_.whole_pieces.end()) {
                     tokens_.push_back({whole->second, offset, offset + piece.size()});
                   } else {
                     tables_.bpe->encode(piece, offset, tokens_);
                   }
                 });
  }

  void normalized(const AddedTokenSet::Part& part) {
    const SpacedText spaced = with_metaspaces(text_, part.begin, part.end, *tables_.metaspace);
    tables_.added_normalized.split(
        spaced.text, 0, spaced.text.size(), [&](const AddedTokenSet::Part& inner) {
          if (inner.id < 0) return merge(spaced, inner.begin, inner.end);
          tokens_.push_back({inner.id, spaced.origin[inner.begin], spaced.origin[inner.end]});
        });
  }

  void merge(const SpacedText& spaced, size_t begin, size_t end) {
    const size_t first = tokens_.size();
    const std::string_view text = spaced.text;
    split_at_metaspaces(text, begin, end, tables_.metaspace->split, [&](size_t from, size_t to) {
      tables_.bpe->encode(text.substr(from, to - from), from, tokens_);
    });
    for (size_t i = first; i < tokens_.size(); ++i) {
      tokens_[i].begin = spaced.origin[tokens_[i].begin];
      tokens_[i].end = spaced.origin[tokens_[i].end];
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
    // Of bytes that together are no text each becomes U+FFFD.
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
  if (!tables_->metaspace) return replace_invalid_utf8(text);
  return tables_->strip_first_space && text.starts_with(' ') ? text.substr(1) : text;
}

int64_t Tokenizer::size() const { return static_cast<int64_t>(tables_->bytes.size()); }

std::optional<int32_t> Tokenizer::bos_id() const { return tables_->bos; }
std::optional<int32_t> Tokenizer::eos_id() const { return tables_->eos; }
std::optional<int32_t> Tokenizer::pad_id() const { return tables_->pad; }
std::optional<int32_t> Tokenizer::unk_id() const { return tables_->unk; }
bool Tokenizer::cuts_at_lines() const { return !tables_->metaspace; }
const std::string& Tokenizer::origin() const { return tables_->origin; }

}  // namespace tessera
