#include "tessera/data/tokenizer.h"

#include "lib/data/tokenizer_tables.h"
#include "lib/data/unicode.h"
#include "tessera/core/error.h"
#include "tessera/core/file.h"

namespace tessera {

std::vector<Token> Tokenizer::encode_with_offsets(std::string_view text,
                                                  bool add_special_tokens) const {
  check_utf8(text, "text to be tokenised");
  std::vector<Token> tokens;
  const auto plain = [&](const AddedTokenSet::Part& part) {
    const std::string_view section = text.substr(part.begin, part.end - part.begin);
    split_pieces(tables_->pre_tokenizer, section, [&](std::string_view piece) {
      const size_t offset = static_cast<size_t>(piece.data() - text.data());
      const auto whole = tables_->whole_pieces.find(absl::string_view(piece.data(), piece.size()));
      if (whole != tables_->whole_pieces.end()) {
        tokens.push_back({whole->second, offset, offset + piece.size()});
      } else {
        tables_->bpe->encode(piece, offset, tokens);
      }
    });
  };
  const auto found = [&](const AddedTokenSet::Part& part) {
    tokens.push_back({part.id, part.begin, part.end});
  };
  if (add_special_tokens) {
    for (const int32_t id : tables_->prefix) tokens.push_back({id, 0, 0});
  }
  tables_->added.split(text, 0, text.size(), [&](const AddedTokenSet::Part& part) {
    if (part.id >= 0) return found(part);
    tables_->added_normalized.split(
        text, part.begin, part.end,
        [&](const AddedTokenSet::Part& inner) { inner.id >= 0 ? found(inner) : plain(inner); });
  });
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
  std::string bytes;
  for (size_t i = 0; i < ids.size(); ++i) {
    check(ids[i] >= 0 && ids[i] < size(), ErrorCode::kDataLoss, "token ", i, ": id ", ids[i],
          " is outside the vocabulary 0..", size() - 1, " of ", origin());
    const auto id = static_cast<size_t>(ids[i]);
    if (!skip_special_tokens || !tables_->special[id]) bytes += tables_->bytes[id];
  }
  return replace_invalid_utf8(bytes);
}

int64_t Tokenizer::size() const { return static_cast<int64_t>(tables_->bytes.size()); }

std::optional<int32_t> Tokenizer::token_id(std::string_view token) const {
  const auto found = tables_->ids.find(absl::string_view(token.data(), token.size()));
  return found == tables_->ids.end() ? std::nullopt : std::optional(found->second);
}

std::optional<int32_t> Tokenizer::bos_id() const { return tables_->bos; }
std::optional<int32_t> Tokenizer::eos_id() const { return tables_->eos; }
std::optional<int32_t> Tokenizer::pad_id() const { return tables_->pad; }
std::optional<int32_t> Tokenizer::unk_id() const { return tables_->unk; }
const std::string& Tokenizer::origin() const { return tables_->origin; }

}  // namespace tessera
